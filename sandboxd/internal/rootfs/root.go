package rootfs

import (
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// maxLinks bounds the symlinks followed for one path, as the kernel does.
const maxLinks = 40

// maxRaces bounds how often openat2 is asked again. It gives up on ".." whenever anything
// anywhere is renamed meanwhile; somebody who never stops renaming shall not stop us.
const maxRaces = 16

// noOpenat2 is set once the kernel, or a seccomp filter, has said that it lacks openat2.
var noOpenat2 atomic.Bool

// Root is a folder that no path given to it leads out of.
type Root struct {
	fd      int
	workdir string
}

// Open opens dir as a root; relative paths start at workdir inside it.
func Open(dir, workdir string) (*Root, error) {
	fd, err := Openat(atFdcwd, dir, OPath|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(workdir, "/") {
		workdir = "/" + workdir
	}
	return &Root{fd: fd, workdir: workdir}, nil
}

// Close gives the root's descriptor back.
func (r *Root) Close() error { return syscall.Close(r.fd) }

// Abs is the path from the root: relative ones start at the workdir. It is not cleaned,
// since ".." after a symlink means what the kernel says.
func (r *Root) Abs(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.TrimSuffix(r.workdir, "/") + "/" + name
}

// Open opens name below the root, following symlinks inside it.
func (r *Root) Open(name string, flags int) (int, error) {
	return resolve(r.fd, r.Abs(name), flags, resolveInRoot|resolveNoMagiclinks)
}

// Parent finds the folder that holds name and its last component. With follow, a symlink
// at the end is followed, to where a file may not be yet. The component is "." when name
// says a folder by ".", ".." or "/". mustDir tells that name ended in a slash.
func (r *Root) Parent(name string, follow bool) (Place, error) {
	name = r.Abs(name)
	for range [maxLinks]struct{}{} {
		dir, base, slash := split(name)
		if base == "." || base == ".." || base == "" {
			fd, err := r.Open(name, OPath|syscall.O_DIRECTORY)
			return Place{Dir: fd, Base: ".", Slash: true}, err
		}
		fd, err := r.Open(dir, OPath|syscall.O_DIRECTORY)
		if err != nil {
			return Place{}, err
		}
		target := ""
		if follow || slash {
			target, err = Readlinkat(fd, base)
		}
		if target == "" && err != syscall.ELOOP {
			return Place{Dir: fd, Base: base, Slash: slash}, nil
		}
		_ = syscall.Close(fd)
		if err != nil {
			return Place{}, err
		}
		if name = target; !strings.HasPrefix(target, "/") {
			name = dir + "/" + target
		}
		if slash {
			name += "/"
		}
	}
	return Place{}, syscall.ELOOP
}

// Place is a name in an open folder. Whoever gets one closes it.
type Place struct {
	Dir   int
	Base  string
	Slash bool // the path ended in a slash: only a folder will do
}

// Close gives the folder's descriptor back.
func (p Place) Close() { _ = syscall.Close(p.Dir) }

// split cuts name into folder and last component; slash tells of a slash at the end.
func split(name string) (dir, base string, slash bool) {
	trimmed := strings.TrimRight(name, "/")
	slash = trimmed != name
	dir, base = path.Split(trimmed)
	return dir, base, slash
}

// Beneath opens name below the folder dir. A symlink, ".." or absolute name that would
// leave dir answers EXDEV.
func Beneath(dir int, name string, flags int) (int, error) {
	return resolve(dir, name, flags, resolveBeneath|resolveNoMagiclinks)
}

// Reopen opens name below dir, where no component may be a symlink.
func Reopen(dir int, name string, flags int) (int, error) {
	return resolve(dir, name, flags, resolveBeneath|resolveNoSymlinks)
}

func resolve(dir int, name string, flags int, how uint64) (int, error) {
	if name == "" {
		return 0, syscall.ENOENT
	}
	if !noOpenat2.Load() {
		fd, err := openat2(dir, name, flags, 0, how)
		for try := 0; err == syscall.EAGAIN && try < maxRaces; try++ {
			fd, err = openat2(dir, name, flags, 0, how)
		}
		if err == syscall.EAGAIN {
			return walk(dir, name, flags, how)
		}
		if err != syscall.ENOSYS && (err != syscall.EPERM || openat2Works(dir)) {
			return fd, err
		}
		noOpenat2.Store(true)
	}
	return walk(dir, name, flags, how)
}

// openat2Works tells a forbidden file from a forbidden system call.
func openat2Works(dir int) bool {
	fd, err := openat2(dir, ".", OPath|syscall.O_DIRECTORY, 0, resolveBeneath)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return err == nil
}

// ProcPath names fd for a system call that takes no descriptor. /proc there is ours.
func ProcPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
