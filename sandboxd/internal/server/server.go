// Package server is the door of sandboxd: identity before token before anything else,
// the headers of every answer, panics, and the routes of the rooms.
package server

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"orchard/sandboxd/internal/wire"
)

// headerTimeout bounds how long a connection may take to send the head of a request.
const headerTimeout = 20 * time.Second

// Room is a part of the wire contract that registers its own routes.
type Room interface {
	Routes(mux *http.ServeMux)
}

// Authorizer knows which bearer tokens are good now.
type Authorizer interface {
	Allowed(authorization string) bool
}

// Options are what the door needs.
type Options struct {
	ID       string
	Tokens   Authorizer
	Activity wire.Activity
	// Closing tells whether the lease has ended.
	Closing func() bool
	// Sealed tells whether commands may run: see package seal. nil: always.
	Sealed func() bool
	// Unsealed names the patterns that are answered before that, too.
	Unsealed []string
	// Quiet names the patterns ("GET /v1/health") whose requests are no activity.
	// Reads of status, lists and waiting carriers are; a room may call Activity itself.
	Quiet []string
	Rooms []Room
}

type door struct {
	Options
	mux             *http.ServeMux
	quiet, unsealed map[string]bool
}

// Handler builds the handler of all requests.
func Handler(o Options) http.Handler {
	d := &door{Options: o, mux: http.NewServeMux(), quiet: set(o.Quiet), unsealed: set(o.Unsealed)}
	for _, room := range o.Rooms {
		room.Routes(d.mux)
	}
	return d
}

func set(patterns []string) map[string]bool {
	found := map[string]bool{}
	for _, pattern := range patterns {
		found[pattern] = true
	}
	return found
}

// Serve serves h on listener until the process ends.
func Serve(listener net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: 10 * time.Minute, MaxHeaderBytes: 64 << 10,
		ConnContext: wire.WithConn}
	return s.Serve(listener)
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tracked := wire.NewWriter(w)
	h := tracked.Header()
	h.Set("Orchard-Sandbox", d.ID)
	h.Set("Orchard-Version", wire.Version)
	if id := r.Header.Get("Orchard-Request-Id"); id != "" {
		h.Set("Orchard-Request-Id", id)
	}
	defer d.recover(tracked, r)
	if problem := d.admit(r); problem != nil {
		wire.Fail(tracked, r, problem)
		return
	}
	_, pattern := d.mux.Handler(r)
	if pattern == "" {
		wire.Fail(tracked, r, wire.NotFound("no_route", fmt.Sprintf("no route %s %s", r.Method, r.URL.Path)))
		return
	}
	if d.Sealed != nil && !d.unsealed[pattern] && !d.Sealed() {
		wire.Fail(tracked, r, &wire.Problem{Status: http.StatusServiceUnavailable, Code: "not_sealed", RetryAfter: 1,
			Detail: "the network of this sandbox is not yet seen to be shut, so nothing runs in it", Hint: "POST /v1/seal, or wait"})
		return
	}
	if !d.quiet[pattern] {
		defer d.Activity.Begin()()
	}
	d.mux.ServeHTTP(tracked, r)
}

// admit is the identity check of the wire contract, in its order.
func (d *door) admit(r *http.Request) *wire.Problem {
	if got := r.Header.Get("Orchard-Sandbox"); got != d.ID {
		return &wire.Problem{Status: http.StatusMisdirectedRequest, Code: "wrong_sandbox",
			Detail: fmt.Sprintf("this is not the sandbox %q", got), Hint: "look its address up again"}
	}
	if !d.Tokens.Allowed(r.Header.Get("Authorization")) {
		return &wire.Problem{Status: http.StatusUnauthorized, Code: "unauthorized",
			Detail: "the bearer token is missing, unknown or expired"}
	}
	if d.Closing != nil && d.Closing() {
		return &wire.Problem{Status: http.StatusServiceUnavailable, Code: "shutting_down", Detail: "the lease of this sandbox has ended"}
	}
	return nil
}

// recover turns a panic into a 500, or breaks the connection if the answer had begun.
func (d *door) recover(w *wire.Writer, r *http.Request) {
	got := recover()
	if got == nil {
		return
	}
	if got == http.ErrAbortHandler { //nolint:errorlint // a sentinel that panics carry unwrapped
		panic(got)
	}
	log.Printf("panic in %s %s: %v\n%s", r.Method, r.URL.Path, got, debug.Stack())
	wire.Fail(w, r, wire.Internal(fmt.Errorf("panic in %s: %v", r.URL.Path, got)))
}
