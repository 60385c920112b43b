// Package lease ends the sandbox when its time is over, so that a dead control plane
// leaks nothing: ttl, idle time-out, the owner's heartbeat, or a request to stop.
package lease

import (
	"sync"
	"time"
)

// Terms are the bounds of a life; zero means none.
type Terms struct{ TTL, MaxTTL, Idle, Heartbeat time.Duration }

// Lease is the clock of the sandbox. It implements wire.Activity.
type Lease struct {
	mu         sync.Mutex
	terms      Terms
	expires    time.Time // zero: never
	maxExpires time.Time // zero: never
	active     int       // what counts as activity now
	lastActive time.Time
	lastBeat   time.Time
	held       time.Time // zero: it can be used; else since when nobody can yet
	ended      bool
	changed    chan struct{}
	end        func(reason, detail string)
}

// New makes the clock; the time runs from now on.
func New(terms Terms) *Lease {
	now := time.Now()
	l := &Lease{terms: terms, lastActive: now, lastBeat: now, changed: make(chan struct{}, 1)}
	if terms.MaxTTL > 0 {
		l.maxExpires = now.Add(terms.MaxTTL)
	}
	if terms.TTL > 0 {
		l.expires = now.Add(terms.TTL)
	}
	if !l.maxExpires.IsZero() && (l.expires.IsZero() || l.expires.After(l.maxExpires)) {
		l.expires = l.maxExpires
	}
	return l
}

// Watch begins to end the lease when it is due: end is then called once, in a goroutine
// of its own, with the reason.
func (l *Lease) Watch(end func(reason, detail string)) {
	l.end = end
	go l.watch()
}

// Hold says that nobody can use the sandbox yet, however much he wants to: until Ready no
// idle time and no heartbeat is missed, and the time to live stands still.
func (l *Lease) Hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = time.Now()
}

// Ready ends Hold.
func (l *Lease) Ready() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held.IsZero() {
		return
	}
	now := time.Now()
	if !l.expires.IsZero() {
		l.expires = l.expires.Add(now.Sub(l.held))
		if !l.maxExpires.IsZero() && l.expires.After(l.maxExpires) {
			l.expires = l.maxExpires
		}
	}
	l.lastActive, l.lastBeat, l.held = now, now, time.Time{}
	l.poke()
}

// Begin says that something which counts as activity began.
func (l *Lease) Begin() (end func()) {
	l.mu.Lock()
	l.active++
	l.lastActive = time.Now()
	l.mu.Unlock()
	return func() {
		l.mu.Lock()
		l.active--
		l.lastActive = time.Now()
		l.mu.Unlock()
	}
}

// Closing tells whether the lease has ended.
func (l *Lease) Closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// End ends the lease now; only the first call counts.
func (l *Lease) End(reason, detail string) {
	l.mu.Lock()
	first := !l.ended
	l.ended = true
	l.mu.Unlock()
	if first {
		go l.end(reason, detail)
	}
}

// watch sleeps until the next moment at which the lease may end.
func (l *Lease) watch() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		reason, detail, next := l.due(time.Now())
		if reason != "" {
			l.End(reason, detail)
			return
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-l.changed:
		}
	}
}

// due tells why the lease is over at now, or how long it cannot be.
func (l *Lease) due(now time.Time) (reason, detail string, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next = time.Hour
	if !l.held.IsZero() {
		return "", "", next
	}
	if !l.expires.IsZero() {
		left := l.expires.Sub(now)
		if left <= 0 {
			return "ttl", "the time to live ended at " + stamp(l.expires), 0
		}
		next = min(next, left)
	}
	if l.terms.Heartbeat > 0 {
		left := l.lastBeat.Add(l.terms.Heartbeat).Sub(now)
		if left <= 0 {
			return "heartbeat", "no heartbeat of the owner for " + l.terms.Heartbeat.String(), 0
		}
		next = min(next, left)
	}
	if l.terms.Idle > 0 {
		left := l.terms.Idle
		if l.active == 0 {
			left = l.lastActive.Add(l.terms.Idle).Sub(now)
		}
		if left <= 0 {
			return "idle", "nothing was asked and nothing ran for " + l.terms.Idle.String(), 0
		}
		next = min(next, left)
	}
	return "", "", next
}

func (l *Lease) poke() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
