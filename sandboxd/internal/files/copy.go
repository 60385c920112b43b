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

// receive writes a body to f and says how long it was and its SHA-256. While one piece is
// hashed it is written and the next one read, so that the slower of the two sets the pace.
func (h *Handler) receive(f *os.File, r *http.Request) (size int64, sum string, err error) {
	digest := newDigest()
	bufs := [2]*buffer{buffers.Get().(*buffer), buffers.Get().(*buffer)}
	defer func() {
		digest.wait()
		buffers.Put(bufs[0])
		buffers.Put(bufs[1])
	}()
	for turn := 0; ; turn++ {
		buf := bufs[turn%len(bufs)]
		got, readErr := fill(r.Body, buf[:])
		last := errors.Is(readErr, io.EOF)
		if got > 0 {
			digest.add(buf[:got], last)
			if err := h.store(f, buf[:got]); err != nil {
				return size, "", err
			}
			size += int64(got)
		}
		if last {
			return size, digest.sum(), nil
		}
		if readErr != nil {
			return size, "", wire.Invalid("body", "the body was cut short: "+readErr.Error())
		}
	}
}

func (h *Handler) store(f *os.File, data []byte) error {
	return h.disk.run(func() error {
		_, err := f.Write(data)
		return err
	})
}

// digest is a SHA-256 that is worked out one piece behind its caller.
type digest struct {
	hash hash.Hash
	idle chan struct{} // holds a token while nothing is hashed
}

func newDigest() *digest {
	d := &digest{hash: sha256.New(), idle: make(chan struct{}, 1)}
	d.idle <- struct{}{}
	return d
}

// add waits until the pieces before are done, which are free from then on, and begins
// with data, which must stay as it is; here and now if it is the last one, since then
// nothing else is to be done meanwhile.
func (d *digest) add(data []byte, last bool) {
	<-d.idle
	work := func() {
		_, _ = d.hash.Write(data)
		d.idle <- struct{}{}
	}
	if last {
		work()
	} else {
		go work()
	}
}

// wait returns once no piece is in use.
func (d *digest) wait() {
	<-d.idle
	d.idle <- struct{}{}
}

func (d *digest) sum() string {
	d.wait()
	return hex.EncodeToString(d.hash.Sum(nil))
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
