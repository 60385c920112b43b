package tunnel

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestBytesAndHalfCloseBothWays(t *testing.T) {
	over(t, func(b *box) {
		c := b.tunnel(inside(b.t, "tcp", "127.0.0.1:0", upper), "", "early, ")
		_, err := io.WriteString(c, "late")
		b.must(err)
		b.must(c.closeWrite())
		if got, err := io.ReadAll(c); err != nil || string(got) != "EARLY, LATE" {
			b.t.Errorf("%q, %v", got, err)
		}
		// The other way round: the service ends its side first and still reads.
		heard := make(chan string, 1)
		c = b.tunnel(inside(b.t, "tcp", "127.0.0.1:0", func(conn *net.TCPConn) {
			defer conn.Close()
			_, _ = io.WriteString(conn, "hello")
			_ = conn.CloseWrite()
			data, _ := io.ReadAll(conn)
			heard <- string(data)
		}), "", "")
		if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
			b.t.Errorf("%q, %v", got, err)
		}
		_, err = io.WriteString(c, "still here")
		b.must(err)
		b.must(c.closeWrite())
		if got := <-heard; got != "still here" {
			b.t.Errorf("%q", got)
		}
	})
}

func TestMuchBothWaysAtOnce(t *testing.T) {
	over(t, func(b *box) {
		c := b.tunnel(inside(b.t, "tcp", "127.0.0.1:0", echo), "", "")
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
		go func() {
			_, _ = c.Conn.Write(data)
			_ = c.closeWrite()
		}()
		got := sha256.New()
		n, err := io.Copy(got, c)
		if want := sha256.Sum256(data); err != nil || n != int64(len(data)) || !bytes.Equal(got.Sum(nil), want[:]) {
			b.t.Errorf("%d bytes, %v", n, err)
		}
	})
}

func TestHTTPThroughATunnel(t *testing.T) {
	b := newBox(t, "unix")
	service := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Path", r.URL.EscapedPath())
		_, _ = io.Copy(w, r.Body)
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	go func() { _ = service.Serve(listener) }()
	defer service.Close()
	c := b.tunnel(listener.Addr().(*net.TCPAddr).Port, "", "")
	for i := 0; i < 3; i++ {
		_, err := io.WriteString(c, "POST /a%2Fb?c=%20 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
		b.must(err)
		answer, err := http.ReadResponse(c.Reader, nil)
		b.must(err)
		body, err := io.ReadAll(answer.Body)
		if err != nil || string(body) != "hello" || answer.Header.Get("X-Path") != "/a%2Fb" {
			t.Errorf("%s %v %v", body, answer.Header, err)
		}
	}
}

func TestIPv6AndWaiting(t *testing.T) {
	b := newBox(t, "unix")
	if listener, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = listener.Close()
		c := b.tunnel(inside(t, "tcp", "[::1]:0", upper), "", "six")
		b.must(c.closeWrite())
		if got, err := io.ReadAll(c); err != nil || string(got) != "SIX" {
			t.Errorf("%q, %v", got, err)
		}
	} else {
		t.Log("no IPv6 here: ", err)
	}
	port := freePort(t)
	start := time.Now()
	time.AfterFunc(300*time.Millisecond, func() { inside(t, "tcp", fmt.Sprintf("127.0.0.1:%d", port), upper) })
	c := b.tunnel(port, "?wait=60", "said while waiting")
	b.must(c.closeWrite())
	if got, err := io.ReadAll(c); err != nil || string(got) != "SAID WHILE WAITING" {
		t.Errorf("%q, %v", got, err)
	}
	if took := time.Since(start); took < 300*time.Millisecond || took >= time.Minute {
		t.Errorf("waited %v", took)
	}
}

func TestPortRefusals(t *testing.T) {
	b := newBox(t, "unix")
	port := freePort(t)
	start := time.Now()
	b.refused(b.request("GET", fmt.Sprintf("ports/%d?wait=0.2", port), upgradeHead, ""), 404, "not_found", "connection_refused")
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("did not wait: %v", took)
	}
	for _, path := range []string{"ports/0", "ports/65536", "ports/x", "ports/80?wait=61", "ports/80?wait=NaN", "ports/80?wait=-1", "ports/80?wait=x"} {
		b.refused(b.request("GET", path, upgradeHead, ""), 400, "invalid_argument", "")
	}
	b.refused(b.request("GET", fmt.Sprintf("ports/%d", port), "", ""), 400, "invalid_argument", "")
	b.refused(b.request("GET", fmt.Sprintf("ports/%d", port), "Connection: upgrade\r\nUpgrade: websocket\r\n", ""), 400, "invalid_argument", "")
}

func TestWaitEndsWithItsClient(t *testing.T) {
	b := newBox(t, "unix")
	conn, err := net.Dial(b.net, b.addr)
	b.must(err)
	fmt.Fprintf(conn, "GET /v1/ports/%d?wait=60 HTTP/1.1\r\nHost: x\r\nOrchard-Sandbox: sb-1\r\n%s\r\n", freePort(t), upgradeHead)
	b.until("the request runs", func() bool { return b.active.Load() == 1 })
	_ = conn.Close()
	b.until("the request has ended", func() bool { return b.active.Load() == 0 })
}

// A client may vanish while the service inside says nothing and does not end either.
func TestVanishedPeersEndATunnel(t *testing.T) {
	over(t, func(b *box) {
		done := make(chan struct{})
		defer close(done)
		c := b.tunnel(inside(b.t, "tcp", "127.0.0.1:0", func(conn *net.TCPConn) {
			defer conn.Close()
			<-done
		}), "", "x")
		if b.net == "tcp" { // a reset, since a plain close looks like a half-close there
			b.must(c.Conn.(*net.TCPConn).SetLinger(0))
		}
		_ = c.Close()
		b.until("the tunnel has ended", func() bool { return b.active.Load() == 0 })
	})
}

func TestTunnelsLeaveNothing(t *testing.T) {
	over(t, func(b *box) {
		port := inside(b.t, "tcp", "127.0.0.1:0", echo)
		round := func(n int) {
			var group sync.WaitGroup
			for i := 0; i < n; i++ {
				group.Add(1)
				go func() {
					defer group.Done()
					c := b.tunnel(port, "", "x")
					if i%2 == 0 {
						_, _ = io.ReadFull(c, make([]byte, 1))
					}
					_ = c.Close()
				}()
			}
			group.Wait()
			b.until("all are closed", func() bool { return b.active.Load() == 0 })
		}
		round(20)
		time.Sleep(50 * time.Millisecond) // the sooner, the more is borne below
		goroutines, descriptors := runtime.NumGoroutine(), openFiles(b.t)
		for i := 0; i < 5; i++ {
			round(40)
		}
		b.until("nothing is left", func() bool {
			runtime.GC() // idle pipes of splice go with it
			return runtime.NumGoroutine() <= goroutines && openFiles(b.t) <= descriptors
		})
	})
}

func TestATunnelIsActivity(t *testing.T) {
	b := newBox(t, "unix")
	c := b.tunnel(inside(t, "tcp", "127.0.0.1:0", echo), "", "")
	if b.active.Load() != 1 {
		t.Error("an open tunnel is no activity")
	}
	_ = c.Close()
	b.until("it is none after", func() bool { return b.active.Load() == 0 })
}
