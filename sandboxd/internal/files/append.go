package files

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// inode names a file whatever its path.
type inode struct{ dev, ino uint64 }

func (h *Handler) append(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r)
	if err != nil {
		return err
	}
	offset, err := q.count("offset", -1, 0)
	if err != nil {
		return err
	}
	o, err := h.owner(q)
	if err != nil {
		return err
	}
	var f *os.File
	err = h.disk.run(func() (err error) { f, err = h.openAppend(q.name(), o); return err })
	if err != nil {
		return wire.FileError(q.name(), err)
	}
	defer f.Close()
	if offset >= 0 {
		unlock, err := h.lockAppend(f, offset)
		if err != nil {
			return wire.FileError(q.name(), err)
		}
		defer unlock()
	}
	if err := h.receiveAppend(f, r); err != nil {
		return wire.FileError(q.name(), err)
	}
	st, err := rootfs.Fstat(int(f.Fd()))
	answer := written{Size: st.Size, Mode: st.Mode & 0o7777}
	answer.Path, answer.PathB64 = text(h.shown(q.name()))
	if err == nil {
		wire.JSON(w, http.StatusOK, answer)
	}
	return wire.FileError(q.name(), err)
}

// openAppend opens a file to append to, and makes it if it is not there.
func (h *Handler) openAppend(path string, o owner) (*os.File, error) {
	const flags = syscall.O_WRONLY | syscall.O_APPEND | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY
	place, err := h.root.Parent(path, true)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	if place.Slash {
		return nil, syscall.EISDIR
	}
	st, err := rootfs.Statat(place.Dir, place.Base)
	if err == nil && kind(&st) != "file" {
		return nil, notRegular(path, kind(&st))
	}
	if err == syscall.ENOENT {
		var fd int
		fd, err = rootfs.Openat(place.Dir, place.Base, flags|syscall.O_CREAT|syscall.O_EXCL, 0o600)
		if err == nil {
			return dressNew(fd, path, o)
		}
		if err == syscall.EEXIST {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	fd, err := rootfs.Openat(place.Dir, place.Base, flags, 0)
	if err != nil {
		return nil, err
	}
	f, _, err := regular(path, fd)
	return f, err
}

func dressNew(fd int, path string, o owner) (*os.File, error) {
	f, _, err := regular(path, fd)
	if err != nil {
		return nil, err
	}
	if err = o.give(fd); err == nil {
		err = syscall.Fchmod(fd, fileMode)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// lockAppend lets one append at a time check the size of a file and count on it.
func (h *Handler) lockAppend(f *os.File, offset int64) (unlock func(), err error) {
	st, err := rootfs.Fstat(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	key := inode{uint64(st.Dev), st.Ino}
	if _, held := h.appends.LoadOrStore(key, nil); held {
		return nil, wire.Conflict("append_running", "another append with an offset to this file is running")
	}
	unlock = func() { h.appends.Delete(key) }
	if st, err = rootfs.Fstat(int(f.Fd())); err == nil && st.Size != offset {
		err = wire.Conflict("offset_mismatch", fmt.Sprintf("the file has %d bytes, not %d", st.Size, offset))
	}
	if err != nil {
		unlock()
	}
	return unlock, err
}

// receiveAppend writes a body to the end of f as it comes. What came before a cut stays.
func (h *Handler) receiveAppend(f *os.File, r *http.Request) error {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for {
		got, readErr := fill(r.Body, buf[:])
		if got > 0 {
			if err := h.store(f, buf[:got]); err != nil {
				return err
			}
		}
		if errors.Is(readErr, io.EOF) {
			return nil
		}
		if readErr != nil {
			return wire.Invalid("body", "the body was cut short; what came was appended")
		}
	}
}
