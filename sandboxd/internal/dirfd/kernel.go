package dirfd

import (
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// Path is the directory for names that are paths of the sandbox ("/proc/...").
var Path = Dir{FD: atFDCWD}

const atFDCWD = -0x64

// held is how many descriptors are held back for the files of the kernel: where
// connections and pipes have taken all others, commands can still be found and killed.
const held = 32

// reserve is the limit of descriptors as it was found, and that less what is held back.
var reserve struct {
	sync.Mutex
	full, less limit
}

type limit struct{ soft, hard uint64 }

// HoldBack lowers our own limit of descriptors by what is held back. (By the system call
// itself: through the syscall package it would change the limit of commands too.)
func HoldBack() {
	reserve.Lock()
	defer reserve.Unlock()
	var now limit
	if prlimit(nil, &now) != 0 || now.soft < 2*held {
		return
	}
	reserve.full, reserve.less = limit{now.hard, now.hard}, limit{now.soft, now.hard}
	if reserve.less.soft > now.hard-held {
		reserve.less.soft = now.hard - held
	}
	_ = prlimit(&reserve.less, nil)
}

func prlimit(set, get *limit) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, syscall.RLIMIT_NOFILE,
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 0, 0)
	return errno
}

// with opens a small kernel file, runs use on it and closes it.
func (d Dir) with(name string, flags int, use func(fd int) error) error {
	fd, err := openAgain(d.FD, name, flags)
	if err == syscall.EMFILE { //nolint:errorlint // a bare errno
		fd, err = openHeld(d.FD, name, flags)
	}
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return use(fd)
}

// openHeld opens with what is held back.
func openHeld(at int, name string, flags int) (int, error) {
	reserve.Lock()
	defer reserve.Unlock()
	if reserve.full.hard == 0 {
		return -1, syscall.EMFILE
	}
	_ = prlimit(&reserve.full, nil)
	defer func() { _ = prlimit(&reserve.less, nil) }()
	return openAgain(at, name, flags)
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
