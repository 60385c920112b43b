// Package tunnel is the room of ports: raw byte tunnels to a port inside, and reverse
// ones, where a connection made inside is carried out over a connection made to us.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"orchard/sandboxd/internal/wire"
)

const (
	maxTunnels  = 1024 // tunnels to ports at once
	maxWait     = 60   // seconds that a request may wait for a listener
	dialTimeout = 5 * time.Second
	firstPause  = 5 * time.Millisecond // between two looks for a listener; grows to
	lastPause   = 100 * time.Millisecond
)

// Deps are what the room needs.
type Deps struct {
	// Activity counts an open tunnel as activity. A carrier that waits is none.
	Activity wire.Activity
}

// Handler answers the requests of the wire contract's section "Ports and reverse".
type Handler struct {
	activity wire.Activity
	tunnels  *wire.Gate
	hold     time.Duration // how long a connection waits for a carrier
	mu       sync.Mutex
	reverses map[int]*reverse // by port
}

// New makes the room; nothing listens yet.
func New(deps Deps) *Handler {
	return &Handler{activity: deps.Activity, tunnels: wire.NewGate("tunnel", maxTunnels), hold: holdTime,
		reverses: map[int]*reverse{}}
}

// Routes registers the room's requests.
func (h *Handler) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/ports/{port}", wire.Handler(h.port))
	mux.Handle("GET /v1/reverse", wire.Handler(h.list))
	mux.Handle("POST /v1/reverse/{port}", wire.Handler(h.open))
	mux.Handle("DELETE /v1/reverse/{port}", wire.Handler(h.close))
	mux.Handle("GET /v1/reverse/{port}/carry", wire.Handler(h.carry))
}

// portOf is the port that a request names, at least low.
func portOf(r *http.Request, low int) (int, error) {
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || port < low || port > 65535 {
		return 0, wire.Invalid("port", fmt.Sprintf("a port from %d to 65535 is due", low))
	}
	return port, nil
}

func waitOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0 && seconds <= maxWait) {
		return 0, wire.Invalid("wait", fmt.Sprintf("seconds from 0 to %d are due", maxWait))
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// port is a tunnel: the request's connection becomes one to a port inside.
func (h *Handler) port(w http.ResponseWriter, r *http.Request) error {
	port, err := portOf(r, 1)
	if err != nil {
		return err
	}
	wait, err := waitOf(r)
	if err != nil {
		return err
	}
	if err := wantsUpgrade(r); err != nil {
		return err
	}
	leave, err := h.tunnels.Enter()
	if err != nil {
		return err
	}
	defer leave()
	target, err := dialWait(r.Context(), port, wait)
	if err != nil {
		return err
	}
	client, err := upgrade(w)
	if err != nil {
		_ = target.Close()
		return err
	}
	join(client, target)
	return nil
}

// dialWait reaches a listener on the loopback interface, waiting for one for a while.
func dialWait(ctx context.Context, port int, wait time.Duration) (net.Conn, error) {
	end, pause := time.Now().Add(wait), firstPause
	for {
		conn, err := dial(ctx, port)
		if err == nil {
			return conn, nil
		}
		left := time.Until(end)
		if left <= 0 || ctx.Err() != nil {
			return nil, unreachable(port, err)
		}
		select {
		case <-time.After(min(pause, left)):
		case <-ctx.Done():
		}
		pause = min(pause*3/2, lastPause)
	}
}

// dial tries IPv4 and then IPv6; the error is that of IPv4, which is always there.
func dial(ctx context.Context, port int) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		return conn, nil
	}
	if conn, err6 := dialer.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port))); err6 == nil {
		return conn, nil
	}
	return nil, err
}

func unreachable(port int, err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return wire.NotFound("connection_refused", fmt.Sprintf("nothing listens on port %d", port))
	}
	return wire.NotFound("unreachable", fmt.Sprintf("port %d cannot be reached: %v", port, err))
}
