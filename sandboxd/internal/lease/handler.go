package lease

import (
	"fmt"
	"net/http"
	"time"

	"orchard/sandboxd/internal/wire"
)

// longest bounds every duration that a request may name, in seconds.
const longest = 1e9

type change struct {
	TTL        *float64               `json:"ttl_s"`
	Heartbeat  bool                   `json:"heartbeat"`
	HeartbeatS wire.Optional[float64] `json:"heartbeat_s"`
	IdleS      wire.Optional[float64] `json:"idle_s"`
}

// reasons are the ends that a request may ask for.
var reasons = map[string]bool{"ttl": true, "idle": true, "heartbeat": true, "deleted": true, "signal": true}

// Routes registers the lease and shutdown routes.
func (l *Lease) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/lease", wire.Handler(l.get))
	mux.Handle("POST /v1/lease", wire.Handler(l.post))
	mux.Handle("POST /v1/shutdown", wire.Handler(l.shutdown))
}

func (l *Lease) get(w http.ResponseWriter, _ *http.Request) error {
	wire.JSON(w, http.StatusOK, l.view())
	return nil
}

func (l *Lease) post(w http.ResponseWriter, r *http.Request) error {
	var c change
	if err := wire.ReadJSON(w, r, 64<<10, &c); err != nil {
		return err
	}
	if err := l.apply(c, time.Now()); err != nil {
		return err
	}
	l.poke()
	wire.JSON(w, http.StatusOK, l.view())
	return nil
}

// apply changes the terms, all of them or none.
func (l *Lease) apply(c change, now time.Time) error {
	for field, value := range map[string]*float64{"ttl_s": c.TTL, "heartbeat_s": c.HeartbeatS.Value, "idle_s": c.IdleS.Value} {
		if value != nil && (!(*value > 0) || *value > longest) {
			return wire.Invalid(field, "a number of seconds above 0 and up to 1e9 is due")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.TTL != nil {
		end := now.Add(seconds(c.TTL))
		if !l.maxExpires.IsZero() && end.After(l.maxExpires) {
			return l.beyond(now)
		}
		l.expires, l.terms.TTL = end, seconds(c.TTL)
	}
	if c.HeartbeatS.Set {
		l.terms.Heartbeat, l.lastBeat = seconds(c.HeartbeatS.Value), now
	}
	if c.Heartbeat {
		l.lastBeat = now
	}
	if c.IdleS.Set {
		l.terms.Idle = seconds(c.IdleS.Value)
	}
	return nil
}

func (l *Lease) beyond(now time.Time) *wire.Problem {
	p := wire.Invalid("ttl_s", fmt.Sprintf("the sandbox ends at %s at the latest (max_ttl %s): at most %.3f seconds from now",
		stamp(l.maxExpires), l.terms.MaxTTL, l.maxExpires.Sub(now).Seconds()))
	p.Status = http.StatusUnprocessableEntity
	return p
}

func (l *Lease) shutdown(w http.ResponseWriter, r *http.Request) error {
	body := struct {
		Reason string `json:"reason"`
		Detail string `json:"detail"`
	}{Reason: "deleted"}
	if r.ContentLength != 0 {
		if err := wire.ReadJSON(w, r, 64<<10, &body); err != nil {
			return err
		}
	}
	if !reasons[body.Reason] {
		return wire.Invalid("reason", "one of ttl, idle, heartbeat, deleted, signal is due")
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusAccepted)
	_ = http.NewResponseController(w).Flush()
	l.End(body.Reason, body.Detail)
	return nil
}

// view is the lease as the wire shows it.
func (l *Lease) view() map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := map[string]any{"expires_at": nil, "max_expires_at": nil, "ttl_s": orNull(l.terms.TTL),
		"idle_s": orNull(l.terms.Idle), "heartbeat_s": orNull(l.terms.Heartbeat)}
	if !l.expires.IsZero() {
		v["expires_at"] = stamp(l.expires)
	}
	if !l.maxExpires.IsZero() {
		v["max_expires_at"] = stamp(l.maxExpires)
	}
	return v
}

func seconds(s *float64) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}

func orNull(d time.Duration) any {
	if d == 0 {
		return nil
	}
	return d.Seconds()
}
