package tunnel

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"orchard/sandboxd/internal/wire"
)

// deadCheck is how often a tunnel of which one direction has ended is looked at: its
// peer may be gone altogether, and a connection that only waits would never notice.
const deadCheck = 2 * time.Second

// hijacked is the connection of a request that became a tunnel.
type hijacked struct {
	net.Conn
	early []byte // what the server had read of it beyond the request
}

func wantsUpgrade(r *http.Request) error {
	for _, token := range strings.Split(strings.Join(r.Header.Values("Connection"), ","), ",") {
		if strings.EqualFold(strings.TrimSpace(token), "upgrade") && strings.EqualFold(r.Header.Get("Upgrade"), "tcp") {
			return nil
		}
	}
	return wire.Invalid("upgrade", "this request needs the headers Connection: Upgrade and Upgrade: tcp")
}

// upgrade takes the connection from the server and answers 101 on it, with the headers
// that every answer carries.
func upgrade(w http.ResponseWriter) (*hijacked, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, wire.Internal(err)
	}
	wire.MarkStarted(w)
	early := make([]byte, rw.Reader.Buffered())
	_, _ = io.ReadFull(rw.Reader, early) // they are buffered: this cannot fail
	header := w.Header()
	header.Set("Connection", "Upgrade")
	header.Set("Upgrade", "tcp")
	head := bytes.NewBufferString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = header.Write(head)
	head.WriteString("\r\n")
	_ = conn.SetDeadline(time.Time{})
	if _, err := conn.Write(head.Bytes()); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &hijacked{conn, early}, nil
}

// join copies both ways until both directions have ended or one has failed, and closes
// both connections. The end of one direction is passed on as a half-close.
func join(client *hijacked, target net.Conn) {
	defer client.Close()
	defer target.Close()
	ended := make(chan direction, 2)
	go func() {
		var err error
		if len(client.early) > 0 {
			_, err = target.Write(client.early)
		}
		if err == nil {
			_, err = io.Copy(target, client.Conn)
		}
		ended <- direction{target, passEnd(target, err)}
	}()
	go func() {
		_, err := io.Copy(client.Conn, target)
		ended <- direction{client.Conn, passEnd(client.Conn, err)}
	}()
	if first := <-ended; first.err == nil {
		last := client.Conn
		if first.to == last {
			last = target
		}
		if awaitEnd(ended, last) {
			return
		}
	}
	_ = client.Close() // wakes the direction that is still copying
	_ = target.Close()
	<-ended
}

// direction is one that has ended: where it led, and how it ended.
type direction struct {
	to  net.Conn
	err error
}

// awaitEnd waits for the second direction; false means that where it leads is gone. Where it comes
// from may be gone already: what that has sent is still to be delivered.
func awaitEnd(ended <-chan direction, to net.Conn) bool {
	ticker := time.NewTicker(deadCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return true
		case <-ticker.C:
			if hungUp(to) {
				return false
			}
		}
	}
}

// passEnd tells the other side that this direction has ended.
func passEnd(to net.Conn, err error) error {
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		return half.CloseWrite()
	}
	return err
}

const (
	pollErr = 0x08
	pollHup = 0x10
)

// hungUp asks the kernel, without reading, whether a connection is dead both ways.
func hungUp(conn net.Conn) bool {
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return true
	}
	poll := struct {
		fd              int32
		events, revents int16
	}{}
	var now syscall.Timespec
	err = control.Control(func(fd uintptr) {
		poll.fd = int32(fd)
		_, _, _ = syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	})
	return err != nil || poll.revents&(pollErr|pollHup) != 0
}
