package tunnel

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"orchard/sandboxd/internal/server"
)

// soon ends a hang; what is waited for comes at once, however long that may be on a busy machine.
const soon = time.Minute

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
	b.must(conn.SetDeadline(time.Now().Add(soon)))
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

func freePort(t testing.TB) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// until waits for something that happens soon.
func (b *box) until(what string, is func() bool) {
	b.t.Helper()
	for end := time.Now().Add(soon); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not so: %s", what)
		}
	}
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

func dialInside(t testing.TB, port int) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(soon))
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func isClosed(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(soon))
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}
