// Package rootfs reaches files below a root folder by descriptors alone: no symlink and
// no magic link of /proc, whoever made it and whenever, leads out of the root.
package rootfs

import (
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Numbers and flags that package syscall lacks; the same on every architecture of Linux.
const (
	sysOpenat2   = 437
	sysFchmodat2 = 452

	// OPath opens a place in the tree, not the file: no permission, no side effect.
	OPath = 0x200000

	atFdcwd           = -100
	atSymlinkNofollow = 0x100
	atRemovedir       = 0x200
	atEmptyPath       = 0x1000

	resolveNoMagiclinks = 0x02
	resolveNoSymlinks   = 0x04
	resolveBeneath      = 0x08
	resolveInRoot       = 0x10

	procSuperMagic = 0x9fa0
)

// raw makes a system call that takes a path, again after each interruption.
//
//go:uintptrescapes
func raw(trap uintptr, dir int, path string, rest ...uintptr) (int, error) {
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return 0, syscall.EINVAL
	}
	var a [4]uintptr
	copy(a[:], rest)
	for {
		n, _, errno := syscall.Syscall6(trap, uintptr(dir), uintptr(unsafe.Pointer(p)), a[0], a[1], a[2], a[3])
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// Openat opens name in dir, close-on-exec.
func Openat(dir int, name string, flags int, mode uint32) (int, error) {
	return raw(syscall.SYS_OPENAT, dir, name, uintptr(flags|syscall.O_CLOEXEC|syscall.O_LARGEFILE), uintptr(mode))
}

type openHow struct{ flags, mode, resolve uint64 }

func openat2(dir int, path string, flags int, mode uint32, resolve uint64) (int, error) {
	how := openHow{flags: uint64(flags|syscall.O_CLOEXEC|syscall.O_LARGEFILE) & 0xffffffff, mode: uint64(mode), resolve: resolve}
	return raw(sysOpenat2, dir, path, uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how))
}

// Statat is lstat of name in dir.
func Statat(dir int, name string) (syscall.Stat_t, error) {
	var st syscall.Stat_t
	_, err := raw(sysFstatat, dir, name, uintptr(unsafe.Pointer(&st)), atSymlinkNofollow)
	return st, err
}

// Fstat is fstat; it works on descriptors opened with OPath too.
func Fstat(fd int) (syscall.Stat_t, error) {
	var st syscall.Stat_t
	for {
		err := syscall.Fstat(fd, &st)
		if err != syscall.EINTR {
			return st, err
		}
	}
}

// Mkdirat makes the folder name in dir.
func Mkdirat(dir int, name string, mode uint32) error {
	_, err := raw(syscall.SYS_MKDIRAT, dir, name, uintptr(mode))
	return err
}

// Unlinkat removes name in dir: a folder if folder is true, else anything else.
func Unlinkat(dir int, name string, folder bool) error {
	flags := uintptr(0)
	if folder {
		flags = atRemovedir
	}
	_, err := raw(syscall.SYS_UNLINKAT, dir, name, flags)
	return err
}

// Renameat moves a name, replacing what stands at the new one.
func Renameat(fromDir int, from string, toDir int, to string) error {
	return twoPaths(syscall.SYS_RENAMEAT, fromDir, from, toDir, to)
}

// Linkat gives the file at from a second name; a symlink is linked itself, not followed.
func Linkat(fromDir int, from string, toDir int, to string) error {
	return twoPaths(syscall.SYS_LINKAT, fromDir, from, toDir, to)
}

//go:uintptrescapes
func twoPaths(trap uintptr, fromDir int, from string, toDir int, to string) error {
	p, err := syscall.BytePtrFromString(to)
	if err != nil {
		return syscall.EINVAL
	}
	_, err = raw(trap, fromDir, from, uintptr(toDir), uintptr(unsafe.Pointer(p)))
	return err
}

// Symlinkat makes the symlink name in dir, which says target.
func Symlinkat(target string, dir int, name string) error {
	p, err := syscall.BytePtrFromString(target)
	if err != nil {
		return syscall.EINVAL
	}
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return syscall.EINVAL
	}
	_, _, errno := syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(p)), uintptr(dir), uintptr(unsafe.Pointer(n)))
	if errno != 0 {
		return errno
	}
	return nil
}

// Readlinkat reads the symlink name in dir ("": dir itself, opened with OPath).
// A magic link of /proc answers ELOOP: what it says is not where it leads.
func Readlinkat(dir int, name string) (string, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := raw(syscall.SYS_READLINKAT, dir, name, uintptr(unsafe.Pointer(&buf[0])), uintptr(size))
		if err != nil {
			return "", err
		}
		if n == size {
			continue
		}
		target := string(buf[:n])
		if magic(target) && onProc(dir) {
			return "", syscall.ELOOP
		}
		return target, nil
	}
}

// magic tells whether a link of procfs with this text jumps to a kernel object: the
// plain ones there (self, mounts, net, thread-self) are relative.
func magic(target string) bool {
	return strings.HasPrefix(target, "/") || strings.Contains(target, ":")
}

func onProc(fd int) bool { return fsType(fd) == procSuperMagic }

func fsType(fd int) int64 {
	var fs syscall.Statfs_t
	if syscall.Fstatfs(fd, &fs) != nil {
		return 0
	}
	return int64(fs.Type) & 0xffffffff
}

// kernelFS are the file systems that show the kernel: they hold no files of anybody, and
// reading all of one has no end.
var kernelFS = map[int64]bool{procSuperMagic: true, 0x62656572: true /* sysfs */, 0x27e0eb: true, /* cgroup */
	0x63677270: true /* cgroup2 */, 0x64626720: true /* debugfs */, 0x74726163: true, /* tracefs */
	0x73636673: true /* securityfs */, 0xcafe4a11: true /* bpf */, 0x1cd1: true, /* devpts */
	0x19800202: true /* mqueue */, 0xf97cff8c: true /* selinuxfs */, 0x6165676c: true, /* pstore */
	0xde5e81e4: true /* efivarfs */, 0x62656570: true /* configfs */, 0x42494e4d: true, /* binfmt_misc */
	0x65735543: true /* fusectl */, 0x67596969: true /* rpc_pipefs */, 0x6e667364: true /* nfsd */}

// OnKernelFS tells whether fd is on a file system such as proc or sysfs.
func OnKernelFS(fd int) bool { return kernelFS[fsType(fd)] }

// Chown sets the owner of what fd stands for, OPath or not; a symlink's own.
func Chown(fd, uid, gid int) error {
	_, err := raw(syscall.SYS_FCHOWNAT, fd, "", uintptr(uid), uintptr(gid), atEmptyPath)
	return err
}

// noFchmodat2 is set by a test on kernels that have the call.
var noFchmodat2 atomic.Bool

// Chmod sets the mode of what fd stands for, OPath or not. Before Linux 6.6 that takes
// /proc for a descriptor opened with OPath.
func Chmod(fd int, mode uint32) error {
	err := error(syscall.ENOSYS)
	if !noFchmodat2.Load() {
		_, err = raw(sysFchmodat2, fd, "", uintptr(mode), atEmptyPath)
	}
	if err != syscall.ENOSYS && err != syscall.EPERM { // EPERM: or a seccomp filter
		return err
	}
	if err = syscall.Fchmod(fd, mode); err != syscall.EBADF {
		return err
	}
	return syscall.Chmod(ProcPath(fd), mode)
}

// Touch sets the modification time of name in dir, never through a symlink.
func Touch(dir int, name string, mtime time.Time) error {
	ts := [2]syscall.Timespec{syscall.NsecToTimespec(mtime.UnixNano()), syscall.NsecToTimespec(mtime.UnixNano())}
	_, err := raw(syscall.SYS_UTIMENSAT, dir, name, uintptr(unsafe.Pointer(&ts[0])), atSymlinkNofollow)
	return err
}
