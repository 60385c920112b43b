package tunnel

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// reverse opens a port and tells which.
func (b *box) reverse(port, status int) int {
	b.t.Helper()
	c := b.request("POST", fmt.Sprintf("reverse/%d", port), "Connection: close\r\n", "")
	var got struct{ Port int }
	b.must(json.NewDecoder(c.answer.Body).Decode(&got))
	if c.answer.StatusCode != status || got.Port == 0 {
		b.t.Fatalf("%d %v", c.answer.StatusCode, got)
	}
	return got.Port
}

func (b *box) carrier(port int) *client {
	b.t.Helper()
	c := b.request("GET", fmt.Sprintf("reverse/%d/carry", port), upgradeHead, "")
	if c.answer.StatusCode != 101 {
		b.t.Fatalf("%v", c.answer)
	}
	return c
}

func (b *box) state(port int) reverseState {
	b.t.Helper()
	c := b.request("GET", "reverse", "Connection: close\r\n", "")
	var got struct{ Reverse []reverseState }
	b.must(json.NewDecoder(c.answer.Body).Decode(&got))
	for _, r := range got.Reverse {
		if r.Port == port {
			return r
		}
	}
	return reverseState{}
}

// begun reads keep-alives up to the byte that begins a connection, and takes it.
func (c *client) begun(t testing.TB) {
	t.Helper()
	for {
		b, err := c.ReadByte()
		if err != nil || b > byteBegin {
			t.Fatalf("byte %d, %v", b, err)
		}
		if b == byteBegin {
			if _, err := c.Write([]byte{byteBegin}); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}

func TestReverseCarriesBytes(t *testing.T) {
	over(t, func(b *box) {
		port := b.reverse(0, 201)
		if again := b.reverse(port, 200); again != port {
			b.t.Errorf("%d", again)
		}
		c := b.carrier(port)
		b.until("the carrier waits", func() bool { return b.state(port).Carriers == 1 })
		if b.active.Load() != 1 { // the request of the state itself has ended or is about to
			b.until("a waiting carrier is no activity", func() bool { return b.active.Load() == 0 })
		}
		conn := dialInside(b.t, port)
		_, err := io.WriteString(conn, "request")
		b.must(err)
		b.must(conn.CloseWrite())
		c.begun(b.t)
		if b.active.Load() == 0 {
			b.t.Error("a carried connection is no activity")
		}
		if got, err := io.ReadAll(c); err != nil || string(got) != "request" {
			b.t.Errorf("%q, %v", got, err)
		}
		_, err = io.WriteString(c, "answer")
		b.must(err)
		b.must(c.closeWrite())
		if got, err := io.ReadAll(conn); err != nil || string(got) != "answer" {
			b.t.Errorf("%q, %v", got, err)
		}
		b.until("it is over", func() bool { return b.state(port) == reverseState{Port: port} })
	})
}

func TestAConnectionWaitsForACarrier(t *testing.T) {
	b := newBox(t, "unix")
	port := b.reverse(0, 201)
	conns := []net.Conn{dialInside(t, port), dialInside(t, port)}
	for i, conn := range conns {
		_, err := fmt.Fprintf(conn, "%d", i)
		b.must(err)
	}
	b.until("both are held", func() bool { return b.state(port).Held == 2 })
	for want := byte('0'); want < '2'; want++ {
		c := b.carrier(port)
		c.begun(t)
		if got, err := c.ReadByte(); err != nil || got != want {
			t.Errorf("%c, %v", got, err)
		}
	}
}

func TestAConnectionWithoutCarrierIsClosed(t *testing.T) {
	b := newBox(t, "unix")
	b.h.hold = 200 * time.Millisecond
	port := b.reverse(0, 201)
	start := time.Now() // before the dial: it is held from when it is accepted
	conn := dialInside(t, port)
	if !isClosed(conn) || time.Since(start) < b.h.hold {
		t.Errorf("not closed in time, but after %v", time.Since(start))
	}
	if held := b.state(port).Held; held != 0 {
		t.Errorf("%d are held", held)
	}
	if holdTime != 30*time.Second || aliveEvery != 20*time.Second {
		t.Error("not the times of the contract")
	}
}

func TestManyConnectionsOverManyCarriers(t *testing.T) {
	over(t, func(b *box) {
		port := b.reverse(0, 201)
		const n = 60
		for i := 0; i < n; i++ {
			c := b.carrier(port)
			go func() { // the far side: echo
				c.begun(b.t)
				_, _ = io.Copy(c.Conn, c)
				_ = c.closeWrite()
			}()
		}
		var group sync.WaitGroup
		for i := 0; i < n; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				conn, want := dialInside(b.t, port), fmt.Sprint("number ", i)
				_, _ = io.WriteString(conn, want)
				_ = conn.CloseWrite()
				if got, err := io.ReadAll(conn); err != nil || string(got) != want {
					b.t.Errorf("%q, %v", got, err)
				}
			}()
		}
		group.Wait()
		b.until("all is over", func() bool { return b.state(port) == reverseState{Port: port} })
	})
}

func TestDeleteEndsEverything(t *testing.T) {
	b := newBox(t, "unix")
	port := b.reverse(0, 201)
	carried := dialInside(t, port)
	busy := b.carrier(port)
	busy.begun(t)
	idle := b.carrier(port)
	b.until("one waits", func() bool { return b.state(port).Carriers == 1 && b.state(port).Active == 1 })
	if c := b.request("DELETE", fmt.Sprintf("reverse/%d", port), "", ""); c.answer.StatusCode != 204 {
		t.Errorf("%v", c.answer)
	}
	for i, conn := range []net.Conn{carried, busy.Conn, idle.Conn} {
		if !isClosed(conn) {
			t.Errorf("%d is still open", i)
		}
	}
	if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		t.Error("the port still listens")
	}
	b.refused(b.request("DELETE", fmt.Sprintf("reverse/%d", port), "", ""), 404, "not_found", "no_reverse")
	b.refused(b.request("GET", fmt.Sprintf("reverse/%d/carry", port), upgradeHead, ""), 404, "not_found", "no_reverse")
	b.reverse(port, 201)
}

func TestReverseRefusals(t *testing.T) {
	b := newBox(t, "unix")
	taken := inside(t, "tcp", "127.0.0.1:0", echo)
	b.refused(b.request("POST", fmt.Sprintf("reverse/%d", taken), "", ""), 409, "conflict", "port_taken")
	b.refused(b.request("POST", "reverse/70000", "", ""), 400, "invalid_argument", "")
	port := b.reverse(0, 201)
	b.refused(b.request("GET", fmt.Sprintf("reverse/%d/carry", port), "", ""), 400, "invalid_argument", "")
	for i := 1; i < maxReverses; i++ {
		b.reverse(0, 201)
	}
	b.refused(b.request("POST", "reverse/0", "", ""), 429, "rate_limited", "reverse")
}

func TestHeldConnectionsAreBounded(t *testing.T) {
	b := newBox(t, "unix")
	port := b.reverse(0, 201)
	for i := 0; i < maxHeld; i++ {
		dialInside(t, port)
	}
	b.until("all are held", func() bool { return b.state(port).Held == maxHeld })
	if !isClosed(dialInside(t, port)) {
		t.Error("one too many is held")
	}
}

func TestReverseListensOnIPv6Too(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 loopback here: ", err)
	} else {
		_ = l.Close()
	}
	b := newBox(t, "unix")
	port := b.reverse(0, 201)
	c := b.carrier(port)
	conn, err := net.Dial("tcp", fmt.Sprintf("[::1]:%d", port))
	b.must(err)
	defer conn.Close()
	c.begun(t)
}
