package tunnel

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"orchard/sandboxd/internal/server"
)

// box is the room behind its real door.
type box struct {
	t      testing.TB
	h      *Handler
	net    string
	addr   string
	active atomic.Int64 // activity now
}

func (b *box) Allowed(string) bool { return true }

func (b *box) Begin() func() {
	b.active.Add(1)
	return func() { b.active.Add(-1) }
}

// over runs a test over a Unix socket, as local sandboxes have, and over TCP, as Pods do.
func over(t *testing.T, test func(b *box)) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) { test(newBox(t, network)) })
	}
}

func newBox(t testing.TB, network string) *box {
	t.Helper()
	b := &box{t: t, net: network, addr: "127.0.0.1:0"}
	if network == "unix" {
		b.addr = filepath.Join(t.TempDir(), "s")
	}
	listener, err := net.Listen(network, b.addr)
	b.must(err)
	b.addr = listener.Addr().String()
	b.h = New(Deps{Activity: b})
	s := &http.Server{Handler: server.Handler(server.Options{ID: "sb-1", Tokens: b, Activity: b, Rooms: []server.Room{b.h},
		Quiet: []string{"GET /v1/reverse/{port}/carry"}})}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() {
		_ = s.Close()
		b.h.mu.Lock()
		defer b.h.mu.Unlock()
		for _, r := range b.h.reverses {
			r.end()
		}
	})
	return b
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// client is a connection to the daemon on which an answer has begun.
type client struct {
	net.Conn
	*bufio.Reader
	answer *http.Response
}

func (c *client) Read(p []byte) (int, error) { return c.Reader.Read(p) }

func (c *client) closeWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// request sends the head of a request, and early right behind it in the same packet.
func (b *box) request(method, path, headers, early string) *client {
	b.t.Helper()
	conn, err := net.Dial(b.net, b.addr)
	b.must(err)
	b.must(conn.SetDeadline(time.Now().Add(30 * time.Second)))
	_, err = fmt.Fprintf(conn, "%s /v1/%s HTTP/1.1\r\nHost: x\r\nOrchard-Sandbox: sb-1\r\n%s\r\n%s", method, path, headers, early)
	b.must(err)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	b.must(err)
	b.t.Cleanup(func() { _ = conn.Close() })
	return &client{conn, reader, answer}
}

const upgradeHead = "Connection: keep-alive, Upgrade\r\nUpgrade: tcp\r\n"

func (b *box) tunnel(port int, query, early string) *client {
	b.t.Helper()
	c := b.request("GET", fmt.Sprintf("ports/%d%s", port, query), upgradeHead, early)
	if c.answer.StatusCode != 101 || c.answer.Header.Get("Orchard-Sandbox") != "sb-1" || c.answer.Header.Get("Upgrade") != "tcp" {
		b.t.Fatalf("%v", c.answer)
	}
	return c
}

func (b *box) refused(c *client, status int, code, reason string) {
	b.t.Helper()
	var p struct{ Code, Reason string }
	err := json.NewDecoder(c.answer.Body).Decode(&p)
	if err != nil || c.answer.StatusCode != status || p.Code != code || p.Reason != reason {
		b.t.Errorf("%d %+v, want %d %s %s", c.answer.StatusCode, p, status, code, reason)
	}
}

// inside listens on a port of the loopback interface and serves each connection.
func inside(t testing.TB, network, addr string, serve func(conn *net.TCPConn)) int {
	t.Helper()
	listener, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.TCPConn))
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

func echo(conn *net.TCPConn) {
	defer conn.Close()
	_, _ = io.Copy(conn, conn)
}

// upper answers only once it has read to the end, so that it needs a half-close.
func upper(conn *net.TCPConn) {
	defer conn.Close()
	data, _ := io.ReadAll(conn)
	_, _ = conn.Write(bytes.ToUpper(data))
}

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
	time.AfterFunc(300*time.Millisecond, func() { inside(t, "tcp", fmt.Sprintf("127.0.0.1:%d", port), upper) })
	start := time.Now()
	c := b.tunnel(port, "?wait=20", "said while waiting")
	b.must(c.closeWrite())
	if got, err := io.ReadAll(c); err != nil || string(got) != "SAID WHILE WAITING" {
		t.Errorf("%q, %v", got, err)
	}
	if took := time.Since(start); took < 250*time.Millisecond || took > 5*time.Second {
		t.Errorf("waited %v", took)
	}
}

func freePort(t testing.TB) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
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

// until waits for something that happens soon.
func (b *box) until(what string, is func() bool) {
	b.t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not so: %s", what)
		}
	}
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
		time.Sleep(50 * time.Millisecond)
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

func openFiles(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := len(entries)
	for _, e := range entries { // what Go keeps for later splices
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || strings.HasPrefix(target, "pipe:") {
			n--
		}
	}
	return n
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

func dialInside(t testing.TB, port int) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func isClosed(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}
