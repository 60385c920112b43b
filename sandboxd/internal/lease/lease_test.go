//go:build go1.25

// A clock of the test's own is to be had only with the timers of Go 1.23.
//
//go:debug asynctimerchan=0

package lease

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// life is a lease under a clock that goes on only when all that runs waits for it.
type life struct {
	*Lease
	began  time.Time
	ended  time.Duration // after the beginning
	reason string
}

func begin(terms Terms) *life {
	l := &life{Lease: New(terms), began: time.Now()}
	l.Watch(func(reason, _ string) { l.reason, l.ended = reason, time.Since(l.began) })
	return l
}

// ends checks when the lease ends and why. It must end at some time, for its watch to end.
func (l *life) ends(t *testing.T, at time.Duration, reason string) {
	t.Helper()
	time.Sleep(at + time.Hour)
	synctest.Wait()
	if l.reason != reason || l.ended != at {
		t.Errorf("ended of %q after %v, due: %q after %v", l.reason, l.ended, reason, at)
	}
}

func (l *life) ask(t *testing.T, body string) {
	t.Helper()
	mux, answer := http.NewServeMux(), httptest.NewRecorder()
	l.Routes(mux)
	if mux.ServeHTTP(answer, httptest.NewRequest("POST", "/v1/lease", strings.NewReader(body))); answer.Code != 200 {
		t.Fatalf("%s answered %d %s", body, answer.Code, answer.Body)
	}
}

func TestALeaseEndsWhenItsTimeIsOver(t *testing.T) {
	const s = time.Second
	cases := map[string]struct {
		terms  Terms
		live   func(l *life)
		at     time.Duration
		reason string
	}{
		"ttl":       {Terms{TTL: 5 * s}, func(*life) {}, 5 * s, "ttl"},
		"max_ttl":   {Terms{MaxTTL: 5 * s, TTL: 9 * s}, func(*life) {}, 5 * s, "ttl"},
		"idle":      {Terms{Idle: 5 * s}, func(*life) {}, 5 * s, "idle"},
		"heartbeat": {Terms{Heartbeat: 5 * s}, func(*life) {}, 5 * s, "heartbeat"},
		"a renewal moves the end": {Terms{TTL: 5 * s, MaxTTL: 100 * s, Heartbeat: 5 * s}, func(l *life) {
			time.Sleep(4 * s)
			l.ask(t, `{"ttl_s":50,"heartbeat":true}`)
		}, 9 * s, "heartbeat"},
		"a heartbeat dropped is not missed": {Terms{TTL: 5 * s, Heartbeat: 5 * s}, func(l *life) {
			time.Sleep(4 * s)
			l.ask(t, `{"ttl_s":50,"heartbeat_s":null}`)
		}, 54 * s, "ttl"},
		"an earlier end is heard of": {Terms{TTL: time.Hour}, func(l *life) { l.ask(t, `{"idle_s":3}`) }, 3 * s, "idle"},
		"activity is not idle": {Terms{Idle: 5 * s}, func(l *life) {
			time.Sleep(4 * s)
			end := l.Begin()
			time.Sleep(20 * s)
			end()
		}, 29 * s, "idle"},
		"while held no time passes": {Terms{Idle: 5 * s, Heartbeat: 6 * s, TTL: 7 * s}, func(l *life) {
			l.Hold()
			time.Sleep(20 * s)
			l.Ready()
		}, 25 * s, "idle"},
		"a held time to live is not lost": {Terms{TTL: 7 * s, MaxTTL: 23 * s}, func(l *life) {
			time.Sleep(4 * s)
			l.Hold()
			time.Sleep(10 * s)
			l.Ready()
		}, 17 * s, "ttl"},
		"nor grows beyond its bound": {Terms{TTL: 7 * s, MaxTTL: 15 * s}, func(l *life) {
			l.Hold()
			time.Sleep(10 * s)
			l.Ready()
		}, 15 * s, "ttl"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := begin(c.terms)
				c.live(l)
				l.ends(t, c.at, c.reason)
			})
		})
	}
}
