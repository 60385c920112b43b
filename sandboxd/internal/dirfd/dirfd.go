// Package dirfd works below an open directory that has no name inside the sandbox: the
// state folder and the cgroups that the host hands in.
package dirfd

import (
	"os"
	"syscall"
	"unsafe"
)

const atRemoveDir = 0x200

// Dir is an open directory.
type Dir struct{ FD int }

// Open opens a folder by path.
func Open(path string) (Dir, error) {
	fd, err := syscall.Open(path, syscall.O_DIRECTORY|syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	return Dir{fd}, err
}

// OpenFile opens a file below the directory.
func (d Dir) OpenFile(name string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := syscall.Openat(d.FD, name, flags|syscall.O_CLOEXEC, mode)
		if err == syscall.EINTR { //nolint:errorlint // a bare errno
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "openat", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

// Sub opens a folder below the directory.
func (d Dir) Sub(name string) (Dir, error) {
	fd, err := syscall.Openat(d.FD, name, syscall.O_DIRECTORY|syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	return Dir{fd}, err
}

// Close closes the descriptor.
func (d Dir) Close() { _ = syscall.Close(d.FD) }

// Mkdir makes a folder.
func (d Dir) Mkdir(name string, mode uint32) error { return syscall.Mkdirat(d.FD, name, mode) }

// Unlink removes a file.
func (d Dir) Unlink(name string) error { return d.unlinkat(name, 0) }

// Rmdir removes an empty folder.
func (d Dir) Rmdir(name string) error { return d.unlinkat(name, atRemoveDir) }

func (d Dir) unlinkat(name string, flags uintptr) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(d.FD), uintptr(unsafe.Pointer(p)), flags)
	if errno != 0 {
		return errno
	}
	return nil
}

// Replace writes a file whole or not at all.
func (d Dir) Replace(name string, content []byte) error {
	temporary := name + ".new"
	f, err := d.OpenFile(temporary, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = syscall.Renameat(d.FD, temporary, d.FD, name)
	}
	return err
}
