package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"os"
	"sync"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// buffer is what one stream holds in memory.
type buffer [256 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// send copies n bytes of f from offset on to w. A file that ends early is an error. It
// reads and writes where sendfile could copy (which costs the same here, 0.4 s of CPU a
// GB), so that waiting for the disk is bounded and waiting for the client is not.
func (h *Handler) send(w io.Writer, f *os.File, offset, n int64) (sent int64, err error) {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for sent < n {
		var got int
		err := h.disk.run(func() (err error) {
			got, err = f.ReadAt(buf[:min(int64(len(buf)), n-sent)], offset+sent)
			return err
		})
		if got == 0 && errors.Is(err, io.EOF) {
			return sent, io.ErrUnexpectedEOF
		}
		if got == 0 && err != nil {
			return sent, err
		}
		if _, err := w.Write(buf[:got]); err != nil {
			return sent, err
		}
		sent += int64(got)
	}
	return sent, nil
}

// receive writes a body to f and says how long it was and its SHA-256.
func (h *Handler) receive(f *os.File, r *http.Request) (size int64, sum string, err error) {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	digest := sha256.New()
	for {
		got, readErr := fill(r.Body, buf[:])
		if got > 0 {
			if err := h.store(f, buf[:got], digest); err != nil {
				return size, "", err
			}
			size += int64(got)
		}
		if errors.Is(readErr, io.EOF) {
			return size, hex.EncodeToString(digest.Sum(nil)), nil
		}
		if readErr != nil {
			return size, "", wire.Invalid("body", "the body was cut short: "+readErr.Error())
		}
	}
}

func (h *Handler) store(f *os.File, data []byte, digest hash.Hash) error {
	if digest != nil {
		_, _ = digest.Write(data)
	}
	return h.disk.run(func() error {
		_, err := f.Write(data)
		return err
	})
}

// fill reads until buf is full or the stream ends; small reads cost a disk write each.
func fill(r io.Reader, buf []byte) (int, error) {
	n := 0
	for n < len(buf) {
		got, err := r.Read(buf[n:])
		n += got
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// openNode opens the regular file that a walk has come to, and looks at it anew.
func (h *Handler) openNode(n *node) (f *os.File, err error) {
	err = h.disk.run(func() error {
		fd, err := rootfs.Openat(n.dir, n.name, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		if err == nil {
			f, n.stat, err = regular(n.rel, fd)
		}
		return err
	})
	return f, err
}

// regular wraps a descriptor just opened with O_NONBLOCK, which keeps a FIFO or device
// from hanging us; it is refused unless it is a regular file.
func regular(path string, fd int) (*os.File, syscall.Stat_t, error) {
	var st syscall.Stat_t
	err := syscall.Fstat(fd, &st)
	if err == nil && kind(&st) != "file" {
		err = notRegular(path, kind(&st))
	}
	if err == nil {
		err = syscall.SetNonblock(fd, false)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return nil, st, err
	}
	return os.NewFile(uintptr(fd), path), st, nil
}
