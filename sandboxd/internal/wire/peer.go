package wire

import (
	"context"
	"net"
	"syscall"
	"unsafe"
)

type connKey struct{}

// WithConn serves http.Server.ConnContext, so that PeerGone finds the connection.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

const (
	pollError  = 0x8
	pollHangup = 0x10
	pollPeer   = 0x2000 // POLLRDHUP
)

type pollEntry struct {
	fd              int32
	events, revents int16
}

// PeerGone tells whether the client of r has closed its side, even while bytes of the
// body are unread. (The context of a request learns of it only after the whole body.)
func PeerGone(ctx context.Context) bool {
	c, ok := ctx.Value(connKey{}).(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		entry := pollEntry{fd: int32(fd), events: pollPeer}
		wait := syscall.Timespec{}
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&entry)), 1,
			uintptr(unsafe.Pointer(&wait)), 0, 0, 0)
		gone = errno == 0 && n > 0 && entry.revents&(pollError|pollHangup|pollPeer) != 0
	})
	return gone || err != nil
}
