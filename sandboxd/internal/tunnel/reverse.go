package tunnel

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"orchard/sandboxd/internal/wire"
)

const (
	maxReverses = 64   // ports listened on at once
	maxCarriers = 1024 // that wait on one port
	maxHeld     = 256  // connections that wait for a carrier on one port
	holdTime    = 30 * time.Second
	aliveEvery  = 20 * time.Second
	acceptPause = 50 * time.Millisecond // after a failure such as too many descriptors
)

// reverse is a port listened on inside, whose connections are carried out.
type reverse struct {
	port      int
	hold      time.Duration
	activity  wire.Activity
	listeners []net.Listener
	ended     chan struct{}

	mu     sync.Mutex
	closed bool
	idle   []*carrier            // first come, first served
	held   []*heldConn           // connections without a carrier, the oldest first
	active map[net.Conn]net.Conn // connection inside -> its carrier
}

// heldConn is a connection made inside that waits for a carrier until its time is up.
type heldConn struct {
	net.Conn
	until time.Time
	timer *time.Timer
}

// listen opens a port on the loopback interface, on IPv6 too where there is one.
func listen(port int) (int, []net.Listener, error) {
	var config net.ListenConfig
	for try := 0; ; try++ {
		v4, err := config.Listen(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return 0, nil, err
		}
		chosen := v4.Addr().(*net.TCPAddr).Port
		v6, err := config.Listen(context.Background(), "tcp6", net.JoinHostPort("::1", strconv.Itoa(chosen)))
		if err == nil {
			return chosen, []net.Listener{v4, v6}, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return chosen, []net.Listener{v4}, nil // no IPv6 here
		}
		_ = v4.Close()
		if port != 0 || try == 10 {
			return 0, nil, err
		}
	}
}

func newReverse(port int, listeners []net.Listener, hold time.Duration, activity wire.Activity) *reverse {
	r := &reverse{port: port, hold: hold, activity: activity, listeners: listeners,
		ended: make(chan struct{}), active: map[net.Conn]net.Conn{}}
	for _, l := range listeners {
		go r.accept(l)
	}
	go r.keepAlive(aliveEvery)
	return r
}

func (r *reverse) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err == nil {
			r.offer(&heldConn{Conn: conn, until: time.Now().Add(r.hold)}, false)
			continue
		}
		select {
		case <-r.ended:
			return
		case <-time.After(acceptPause):
		}
	}
}

// offer puts a connection in the queue; first puts it back at the head of it.
func (r *reverse) offer(c *heldConn, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.held) >= maxHeld {
		_ = c.Close()
		return
	}
	if first {
		r.held = append([]*heldConn{c}, r.held...)
	} else {
		r.held = append(r.held, c)
	}
	c.timer = time.AfterFunc(time.Until(c.until), func() { r.expire(c) })
	r.match()
}

func (r *reverse) expire(c *heldConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if remove(&r.held, c) {
		_ = c.Close()
	}
}

// attach adds a carrier; false means that the reverse has ended.
func (r *reverse) attach(c *carrier) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.idle = append(r.idle, c)
	go c.watch(func() { r.detach(c) })
	r.match()
	return true
}

// detach drops a carrier whose peer has left.
func (r *reverse) detach(c *carrier) {
	r.mu.Lock()
	remove(&r.idle, c)
	r.mu.Unlock()
	_ = c.Close()
}

// remove takes x out of a list, and tells whether it was in it.
func remove[T comparable](list *[]T, x T) bool {
	for i, y := range *list {
		if y == x {
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			return true
		}
	}
	return false
}

// match pairs connections and carriers; r.mu is held.
func (r *reverse) match() {
	for len(r.idle) > 0 && len(r.held) > 0 {
		conn, c := r.held[0], r.idle[0]
		r.held, r.idle = r.held[1:], r.idle[1:]
		conn.timer.Stop()
		r.active[conn.Conn] = c.Conn
		go r.carry(conn, c)
	}
}

// carry joins a connection and a carrier; if the carrier is dead the connection waits on.
func (r *reverse) carry(conn *heldConn, c *carrier) {
	end := r.activity.Begin() // before the peer hears of it: there is no moment without
	alive := c.claim()
	if alive {
		join(c.hijacked, conn.Conn)
	}
	end()
	r.mu.Lock()
	delete(r.active, conn.Conn)
	r.mu.Unlock()
	if !alive {
		r.offer(conn, true)
	}
}

func (r *reverse) keepAlive(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-r.ended:
			return
		case <-ticker.C:
		}
		r.mu.Lock()
		idle := append([]*carrier{}, r.idle...)
		r.mu.Unlock()
		for _, c := range idle {
			c.keepAlive()
		}
	}
}

// end stops listening and closes every connection and carrier.
func (r *reverse) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	close(r.ended)
	for _, l := range r.listeners {
		_ = l.Close()
	}
	for _, c := range r.idle {
		_ = c.Close()
	}
	for _, c := range r.held {
		c.timer.Stop()
		_ = c.Close()
	}
	for conn, c := range r.active {
		_ = conn.Close()
		_ = c.Close()
	}
	r.idle, r.held = nil, nil
}
