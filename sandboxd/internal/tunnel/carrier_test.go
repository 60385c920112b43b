package tunnel

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestDeadCarriersAreDropped(t *testing.T) {
	over(t, func(b *box) {
		port := b.reverse(0, 201)
		gone, rude := b.carrier(port), b.carrier(port)
		b.until("both wait", func() bool { return b.state(port).Carriers == 2 })
		_ = gone.Close()
		_, err := io.WriteString(rude, "too early")
		b.must(err)
		b.until("both are dropped", func() bool { return b.state(port).Carriers == 0 })
		if !isClosed(rude.Conn) {
			b.t.Error("a carrier that speaks too early is kept")
		}
	})
}

// A carrier may die after it was chosen and before it was told: the connection waits on.
func TestAConnectionOutlivesADeadCarrier(t *testing.T) {
	b := newBox(t, "unix")
	r := newReverse(1, nil, time.Minute, b)
	defer r.end()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	dead := newCarrier(&hijacked{Conn: ours})
	dead.dead = true
	close(dead.watched)
	conn, peer := net.Pipe()
	defer peer.Close()
	r.carry(&heldConn{Conn: conn, until: time.Now().Add(time.Minute)}, dead)
	if len(r.held) != 1 || len(r.active) != 0 {
		t.Fatalf("%d are held, %d active", len(r.held), len(r.active))
	}
	carrier, far := net.Pipe()
	defer far.Close()
	r.attach(newCarrier(&hijacked{Conn: carrier}))
	go func() { _, _ = io.WriteString(peer, "x") }()
	got := make([]byte, 1)
	for _, want := range "\x01x" {
		if _, err := far.Read(got); err != nil || got[0] != byte(want) {
			t.Errorf("%q, %v", got, err)
		}
		if want == byteBegin {
			_, _ = far.Write(got)
		}
	}
}

// A carrier may break, or its far end say something else, after it was told and before it took the connection.
func TestAConnectionOutlivesACarrierThatDoesNotTakeIt(t *testing.T) {
	over(t, func(b *box) {
		port := b.reverse(0, 201)
		conn := dialInside(b.t, port)
		_, err := io.WriteString(conn, "x")
		b.must(err)
		for _, leave := range []func(c *client){
			func(c *client) { _ = c.Close() },
			func(c *client) { _ = c.closeWrite() },
			func(c *client) { _, _ = c.Write([]byte("?")) },
		} {
			c := b.carrier(port)
			if got, err := c.ReadByte(); err != nil || got != byteBegin {
				b.t.Fatalf("%d, %v", got, err)
			}
			leave(c)
			b.until("the connection waits again", func() bool { return b.state(port).Held == 1 })
		}
		c := b.carrier(port)
		c.begun(b.t)
		if got, err := c.ReadByte(); err != nil || got != 'x' {
			b.t.Errorf("%q, %v", got, err)
		}
	})
}

func TestIdleCarriersAreKeptAlive(t *testing.T) {
	b := newBox(t, "unix")
	port := b.reverse(0, 201)
	go b.h.reverses[port].keepAlive(20 * time.Millisecond)
	c := b.carrier(port)
	for i := 0; i < 3; i++ {
		if got, err := c.ReadByte(); err != nil || got != byteAlive {
			t.Fatalf("%d, %v", got, err)
		}
	}
	conn := dialInside(t, port)
	_, err := io.WriteString(conn, "\x00\x00data")
	b.must(err)
	c.begun(t)
	time.Sleep(60 * time.Millisecond) // no keep-alive may follow
	b.must(conn.CloseWrite())
	if got, err := io.ReadAll(c); err != nil || string(got) != "\x00\x00data" {
		t.Errorf("%q, %v", got, err)
	}
}

// A round of keep-alives that began before a carrier was claimed may reach it after.
func TestAClaimedCarrierGetsNoKeepAlive(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	c := newCarrier(&hijacked{Conn: ours})
	go c.watch(func() {})
	got := make(chan []byte, 1)
	go func() {
		begin := make([]byte, 1)
		_, _ = theirs.Read(begin)
		_, _ = theirs.Write(begin)
		data, _ := io.ReadAll(theirs)
		got <- append(begin, data...)
	}()
	if !c.claim() {
		t.Fatal("a living carrier cannot be claimed")
	}
	c.keepAlive()
	_ = ours.Close()
	if data := <-got; string(data) != "\x01" {
		t.Errorf("the peer got %q", data)
	}
}
