package process

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"orchard/sandboxd/internal/output"
)

const (
	// chunk is the most that is read from a pipe, or sent to a reader, at once.
	chunk = 256 << 10
	// bigPipe is what a pipe grows to once it was found full: it saves switches.
	bigPipe   = 1 << 20
	smallPipe = 64 << 10
	setPipeSz = 1031
	fionread  = 0x541B
)

// buffers are lent for the moment of a read, so that an idle stream holds none.
var buffers = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// pump carries one pipe into one spool until every writer has closed it.
type pump struct {
	from *os.File
	to   *output.Spool
	eof  chan struct{}
	grow bool // a pipe, not a terminal

	// mu is held over a read and its count, so that at any moment read + what is in the
	// pipe is all that was written.
	mu       sync.Mutex
	read     int64
	appended int64
	last     time.Time // of the last byte
	moved    chan struct{}
}

func newPump(from *os.File, to *output.Spool, grow bool) *pump {
	return &pump{from: from, to: to, eof: make(chan struct{}), grow: grow, moved: make(chan struct{}, 1)}
}

// run pumps; it owns the pipe.
func (m *pump) run() {
	defer close(m.eof)
	defer m.to.Close()
	defer m.from.Close()
	raw, err := m.from.SyscallConn()
	if err != nil {
		return
	}
	for m.step(raw) {
	}
}

// step moves one chunk; false at the end.
func (m *pump) step(raw syscall.RawConn) bool {
	var buffer *[]byte
	var n int
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		if buffer == nil {
			buffer = buffers.Get().(*[]byte)
		}
		n, failed = m.readSome(int(fd), *buffer)
		if failed == syscall.EAGAIN { //nolint:errorlint // a bare errno
			buffers.Put(buffer) // wait for bytes without holding memory
			buffer = nil
			return false
		}
		return true
	})
	if buffer == nil {
		return false
	}
	defer buffers.Put(buffer)
	if err != nil || failed != nil || n <= 0 { // EIO: the last holder of a terminal closed it
		return false
	}
	m.to.Append((*buffer)[:n])
	m.mu.Lock()
	m.appended, m.last = m.appended+int64(n), time.Now()
	m.mu.Unlock()
	select {
	case m.moved <- struct{}{}:
	default:
	}
	return true
}

func (m *pump) readSome(fd int, p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		n, err := syscall.Read(fd, p)
		if err == syscall.EINTR { //nolint:errorlint // a bare errno
			continue
		}
		if n > 0 {
			m.read += int64(n)
		}
		if n >= smallPipe && m.grow {
			m.grow = false
			_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), setPipeSz, bigPipe)
		}
		return n, err
	}
}

// written is how many bytes have been written to the pipe up to now.
func (m *pump) written() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var waiting int32
	if raw, err := m.from.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, fionread, uintptr(unsafe.Pointer(&waiting)))
		})
	}
	return m.read + int64(waiting)
}

// progress is how many bytes are in the spool, and when the last came.
func (m *pump) progress() (appended int64, last time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.appended, m.last
}
