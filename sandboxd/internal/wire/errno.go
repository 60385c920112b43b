package wire

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"syscall"
)

var errnoNames = map[syscall.Errno]string{
	syscall.E2BIG: "E2BIG", syscall.EACCES: "EACCES", syscall.EAGAIN: "EAGAIN", syscall.EBADF: "EBADF",
	syscall.EBUSY: "EBUSY", syscall.ECONNREFUSED: "ECONNREFUSED", syscall.EDQUOT: "EDQUOT", syscall.EEXIST: "EEXIST",
	syscall.EFAULT: "EFAULT", syscall.EFBIG: "EFBIG", syscall.EINTR: "EINTR", syscall.EINVAL: "EINVAL",
	syscall.EIO: "EIO", syscall.EISDIR: "EISDIR", syscall.ELOOP: "ELOOP", syscall.EMFILE: "EMFILE",
	syscall.EMLINK: "EMLINK", syscall.ENAMETOOLONG: "ENAMETOOLONG", syscall.ENFILE: "ENFILE", syscall.ENODEV: "ENODEV",
	syscall.ENOENT: "ENOENT", syscall.ENOEXEC: "ENOEXEC", syscall.ENOMEM: "ENOMEM", syscall.ENOSPC: "ENOSPC",
	syscall.ENOSYS: "ENOSYS", syscall.ENOTDIR: "ENOTDIR", syscall.ENOTEMPTY: "ENOTEMPTY", syscall.ENOTSUP: "ENOTSUP",
	syscall.ENXIO: "ENXIO", syscall.EOVERFLOW: "EOVERFLOW", syscall.EPERM: "EPERM", syscall.EPIPE: "EPIPE",
	syscall.EROFS: "EROFS", syscall.ESPIPE: "ESPIPE", syscall.ESRCH: "ESRCH", syscall.ESTALE: "ESTALE",
	syscall.ETIMEDOUT: "ETIMEDOUT", syscall.ETXTBSY: "ETXTBSY", syscall.EXDEV: "EXDEV",
}

// ErrnoName gives the symbolic name of an errno ("ENOENT"), or "E" and its number.
func ErrnoName(e syscall.Errno) string {
	if name, ok := errnoNames[e]; ok {
		return name
	}
	return "E" + strconv.Itoa(int(e))
}

func errnoStatus(e syscall.Errno) int {
	switch e {
	case syscall.ENOENT:
		return http.StatusNotFound
	case syscall.EISDIR, syscall.ENOTDIR, syscall.EEXIST, syscall.ENOTEMPTY, syscall.ELOOP, syscall.EXDEV:
		return http.StatusConflict
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return http.StatusForbidden
	case syscall.ENOSPC, syscall.EDQUOT:
		return http.StatusInsufficientStorage
	}
	return http.StatusBadRequest
}

// FileError turns the failure of an operation on path into a file_error problem with
// the errno's name and status. A body cut short becomes invalid_argument; anything
// else, which has no errno, stays what it is. nil stays nil.
func FileError(path string, err error) error {
	if err == nil {
		return nil
	}
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return &Problem{Status: errnoStatus(errno), Code: "file_error", Errno: ErrnoName(errno),
			Field: "path", Detail: fmt.Sprintf("%q: %s", path, errno.Error())}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return Invalid("body", "the body was cut short; nothing was changed")
	}
	return err
}
