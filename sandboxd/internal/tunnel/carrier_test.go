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
	got := make([]byte, 2)
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "\x01x" {
		t.Errorf("%q, %v", got, err)
	}
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
		data, _ := io.ReadAll(theirs)
		got <- data
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
