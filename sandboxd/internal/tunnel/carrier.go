package tunnel

import (
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	byteAlive = 0x00 // nothing yet; says that the carrier is alive
	byteBegin = 0x01 // a connection is there; once the peer has sent it back, the bytes are the connection's

	// ackTimeout is how long a peer may leave a keep-alive unacknowledged.
	ackTimeout = 30 * time.Second
	// writeTimeout bounds the write of one byte into an empty socket.
	writeTimeout = 5 * time.Second
	// takeTimeout is how long a peer may take to say that it has a connection.
	takeTimeout    = 10 * time.Second
	tcpUserTimeout = 18
)

// carrier is a connection made to us that waits to carry one made inside.
type carrier struct {
	*hijacked
	watched chan struct{} // closed when the watch has ended
	dead    bool          // set before watched is closed: the peer left, or spoke too early

	mu      sync.Mutex // held while a byte is written: none may follow byteBegin
	claimed bool
}

func newCarrier(conn *hijacked) *carrier {
	setAckTimeout(conn.Conn, ackTimeout)
	return &carrier{hijacked: conn, watched: make(chan struct{})}
}

// watch waits for the end of an idle carrier and calls gone then. A peer that sends
// before it has a connection breaks the contract: its carrier ends too.
func (c *carrier) watch(gone func()) {
	var one [1]byte
	_, err := c.Conn.Read(one[:])
	timeout, ok := err.(net.Error)
	c.dead = !(ok && timeout.Timeout() && c.isClaimed())
	close(c.watched)
	if c.dead {
		gone()
	}
}

func (c *carrier) isClaimed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claimed
}

// claim ends the idling of a carrier and hands its peer a connection, which counts once the
// peer has said so: until then not a byte of the connection is read, and another carrier may
// have it. false means that the carrier turned out dead; it is closed then.
func (c *carrier) claim() bool {
	c.mu.Lock()
	c.claimed = true
	c.mu.Unlock()
	_ = c.SetReadDeadline(time.Unix(1, 0))
	<-c.watched
	if c.dead || !c.write(byteBegin) || !c.taken() {
		_ = c.Close()
		return false
	}
	setAckTimeout(c.Conn, 0) // from here on a peer may read as slowly as it likes
	return true
}

// taken waits for the peer's word that it has the connection.
func (c *carrier) taken() bool {
	var one [1]byte
	_ = c.SetReadDeadline(time.Now().Add(takeTimeout))
	_, err := c.Conn.Read(one[:])
	_ = c.SetReadDeadline(time.Time{})
	return err == nil && one[0] == byteBegin
}

// keepAlive writes to an idle carrier, so that what lies between keeps it, and a dead
// one is found out.
func (c *carrier) keepAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.claimed && !c.write(byteAlive) {
		_ = c.Close() // the watch tells the rest
	}
}

func (c *carrier) write(b byte) bool {
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.Conn.Write([]byte{b})
	_ = c.SetWriteDeadline(time.Time{})
	return err == nil
}

// setAckTimeout ends a TCP connection whose peer acknowledges nothing for so long.
func setAckTimeout(conn net.Conn, d time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
		})
	}
}
