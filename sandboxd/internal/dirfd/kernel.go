package dirfd

import (
	"strings"
	"sync"
	"syscall"
)

// Path is the directory for names that are paths of the sandbox ("/proc/...").
var Path = Dir{FD: atFDCWD}

const atFDCWD = -0x64

// spare is a descriptor held back for the files of the kernel: where connections and
// pipes have taken all others, commands can still be found and killed.
var spare = struct {
	sync.Mutex
	fd int
}{fd: -1}

func init() { refill() }

func refill() {
	fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	spare.fd = fd
}

// with opens a small kernel file, runs use on it and closes it.
func (d Dir) with(name string, flags int, use func(fd int) error) error {
	fd, err := openAgain(d.FD, name, flags)
	if err == syscall.EMFILE || err == syscall.ENFILE { //nolint:errorlint // bare errnos
		spare.Lock()
		defer spare.Unlock()
		if spare.fd >= 0 {
			_ = syscall.Close(spare.fd)
		}
		defer refill()
		fd, err = openAgain(d.FD, name, flags)
	}
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return use(fd)
}

func openAgain(at int, name string, flags int) (int, error) {
	for {
		fd, err := syscall.Openat(at, name, flags|syscall.O_CLOEXEC, 0)
		if err != syscall.EINTR { //nolint:errorlint // a bare errno
			return fd, err
		}
	}
}

// Write writes a small kernel file, such as one of a cgroup, in one call.
func (d Dir) Write(name, value string) error {
	return d.with(name, syscall.O_WRONLY, func(fd int) error {
		_, err := syscall.Write(fd, []byte(value))
		return err
	})
}

// Read reads a small file whole.
func (d Dir) Read(name string) (string, error) {
	var out strings.Builder
	err := d.with(name, syscall.O_RDONLY, func(fd int) error {
		buffer := make([]byte, 4096)
		for {
			n, err := syscall.Read(fd, buffer)
			if err == syscall.EINTR { //nolint:errorlint // a bare errno
				continue
			}
			if err != nil || n == 0 {
				return err
			}
			out.Write(buffer[:n])
		}
	})
	return out.String(), err
}

// Names lists a folder.
func (d Dir) Names(name string) (names []string, err error) {
	err = d.with(name, syscall.O_RDONLY|syscall.O_DIRECTORY, func(fd int) error {
		buffer := make([]byte, 8192)
		for {
			n, err := syscall.ReadDirent(fd, buffer)
			if err != nil || n <= 0 {
				return err
			}
			_, _, names = syscall.ParseDirent(buffer[:n], -1, names)
		}
	})
	return names, err
}
