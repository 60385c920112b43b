package tunnel

import (
	"errors"
	"fmt"
	"net/http"
	"sort"
	"syscall"

	"orchard/sandboxd/internal/wire"
)

// reverseState is what the list says of a reverse.
type reverseState struct {
	Port     int `json:"port"`
	Carriers int `json:"carriers"` // that wait
	Held     int `json:"held"`     // connections that wait for a carrier
	Active   int `json:"active"`   // connections being carried
}

func (h *Handler) list(w http.ResponseWriter, _ *http.Request) error {
	h.mu.Lock()
	states := make([]reverseState, 0, len(h.reverses))
	for port, r := range h.reverses {
		r.mu.Lock()
		states = append(states, reverseState{port, len(r.idle), len(r.held), len(r.active)})
		r.mu.Unlock()
	}
	h.mu.Unlock()
	sort.Slice(states, func(i, j int) bool { return states[i].Port < states[j].Port })
	wire.JSON(w, http.StatusOK, map[string]any{"reverse": states})
	return nil
}

func (h *Handler) open(w http.ResponseWriter, r *http.Request) error {
	port, err := portOf(r, 0)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reverses[port] != nil {
		wire.JSON(w, http.StatusOK, map[string]int{"port": port})
		return nil
	}
	if len(h.reverses) >= maxReverses {
		return &wire.Problem{Status: http.StatusTooManyRequests, Code: "rate_limited", RetryAfter: 1, Reason: "reverse",
			Detail: fmt.Sprintf("more than %d reverse ports", maxReverses)}
	}
	chosen, listeners, err := listen(port)
	if err != nil {
		return notListening(port, err)
	}
	h.reverses[chosen] = newReverse(chosen, listeners, h.hold, h.activity)
	wire.JSON(w, http.StatusCreated, map[string]int{"port": chosen})
	return nil
}

func notListening(port int, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return wire.Conflict("port_taken", fmt.Sprintf("port %d is taken inside; choose another, or 0", port))
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return wire.Conflict("port_forbidden", fmt.Sprintf("port %d may not be listened on as this user; choose one above 1023", port))
	}
	return wire.Conflict("no_loopback", "no listener on the loopback interface: "+err.Error())
}

func (h *Handler) find(r *http.Request) (*reverse, error) {
	port, err := portOf(r, 1)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.reverses[port]
	if found == nil {
		return nil, noReverse(port)
	}
	return found, nil
}

func noReverse(port int) error {
	return wire.NotFound("no_reverse", fmt.Sprintf("no reverse is open on port %d; POST it first", port))
}

func (h *Handler) close(w http.ResponseWriter, r *http.Request) error {
	found, err := h.find(r)
	if err != nil {
		return err
	}
	h.mu.Lock()
	ours := h.reverses[found.port] == found // another request may have ended it meanwhile
	if ours {
		delete(h.reverses, found.port)
	}
	h.mu.Unlock()
	if !ours {
		return noReverse(found.port)
	}
	found.end()
	wire.JSON(w, http.StatusNoContent, nil)
	return nil
}

// carry makes the request's connection a carrier. The request ends at once, so that a
// carrier that waits counts as no activity.
func (h *Handler) carry(w http.ResponseWriter, r *http.Request) error {
	found, err := h.find(r)
	if err != nil {
		return err
	}
	if err := wantsUpgrade(r); err != nil {
		return err
	}
	found.mu.Lock()
	full := len(found.idle) >= maxCarriers
	found.mu.Unlock()
	if full {
		return &wire.Problem{Status: http.StatusTooManyRequests, Code: "rate_limited", RetryAfter: 1, Reason: "carrier",
			Detail: fmt.Sprintf("more than %d carriers wait on port %d", maxCarriers, found.port)}
	}
	conn, err := upgrade(w)
	if err != nil {
		return err
	}
	c := newCarrier(conn)
	if len(conn.early) > 0 || !found.attach(c) {
		_ = conn.Close()
	}
	return nil
}
