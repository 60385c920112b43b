package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// death waits for the daemon to end and reads why.
func (d *daemon) death() (reason, detail string) {
	d.t.Helper()
	var text []byte
	until(d.t, "the end is written down", func() (is bool) { text, is = d.note(); return is })
	var told struct{ Reason, At, Detail string }
	must(d.t, json.Unmarshal(text, &told))
	if _, err := time.Parse(time.RFC3339Nano, told.At); err != nil {
		d.t.Errorf("at: %v", err)
	}
	return told.Reason, told.Detail
}

// note is what the daemon has written of its end.
func (d *daemon) note() (text []byte, written bool) {
	text, err := os.ReadFile(filepath.Join(d.folder, "state", "death.json"))
	return text, err == nil
}

func TestALeaseEndsTheSandboxAndSaysWhy(t *testing.T) {
	cases := map[string]map[string]any{
		"ttl":       {"ttl_s": 0.4},
		"idle":      {"idle_s": 0.4, "ttl_s": 60},
		"heartbeat": {"heartbeat_s": 0.4, "ttl_s": 60},
	}
	for reason, lease := range cases {
		t.Run(reason, func(t *testing.T) {
			d := start(t, options{mark: "supervisor", state: true, config: map[string]any{"lease": lease}})
			if got, _ := d.death(); got != reason {
				t.Errorf("died of %q", got)
			}
		})
	}
}

func TestTheEndKillsEverythingThatRuns(t *testing.T) {
	forEachMark(t, options{state: true}, func(t *testing.T, d *daemon) {
		seconds := lasting()
		d.run("setsid sleep "+seconds+" & echo", nil)
		d.do("POST", "/v1/processes", body{"id": "x", "shell": "sleep " + seconds})
		until(t, "both run", func() bool { return alive("sleep", seconds) == 2 })
		if status, _, _ := d.do("POST", "/v1/shutdown", body{"reason": "deleted", "detail": "by a test"}); status != 202 {
			t.Fatalf("shutdown answered %d", status)
		}
		if reason, detail := d.death(); reason != "deleted" || detail != "by a test" {
			t.Errorf("died of %q (%q)", reason, detail)
		}
		if n := alive("sleep", seconds); n != 0 {
			t.Errorf("%d processes outlived the sandbox", n)
		}
	})
}

func TestASignalEndsTheSandbox(t *testing.T) {
	d := start(t, options{mark: "supervisor", state: true})
	d.run("true", nil)
	must(t, d.process.Process.Signal(syscall.SIGTERM))
	if reason, _ := d.death(); reason != "signal" {
		t.Errorf("died of %q", reason)
	}
}

func TestARunningCommandIsActivityAndReadingAStatusIsNone(t *testing.T) {
	d := start(t, options{mark: "supervisor", state: true})
	d.do("POST", "/v1/processes", body{"id": "x", "argv": []string{"sleep", "1000"}})
	d.do("POST", "/v1/lease", body{"idle_s": 0.4})
	time.Sleep(1200 * time.Millisecond)
	if status, _, _ := d.do("GET", "/v1/health", nil); status != 200 {
		t.Fatalf("it died while a command ran (%d)", status)
	}
	d.do("DELETE", "/v1/processes/x", nil)
	until(t, "it dies though asked for its status", func() bool {
		for _, path := range []string{"/v1/health", "/v1/stats", "/v1/lease", "/v1/processes", "/v1/processes/x"} {
			abort(d.try(context.Background(), "GET", path, nil)) // which fails once it has died
		}
		_, died := d.note()
		return died
	})
	if reason, _ := d.death(); reason != "idle" {
		t.Errorf("died of %q", reason)
	}
}

func TestRenewingMovesTheEndButNeverBeyondItsBound(t *testing.T) {
	d := start(t, options{mark: "supervisor", state: true, config: map[string]any{"lease": map[string]any{"ttl_s": 20, "max_ttl_s": 100, "heartbeat_s": 80}}})
	first := d.lease().Expires
	if status, _, text := d.do("POST", "/v1/lease", body{"ttl_s": 50, "heartbeat": true}); status != 200 {
		t.Fatalf("renewing answered %d %s", status, text)
	}
	status, _, text := d.do("POST", "/v1/lease", body{"ttl_s": 200})
	var p problem
	must(t, json.Unmarshal(text, &p))
	if status != 422 || p.Code != "invalid_argument" || p.Field != "ttl_s" {
		t.Errorf("beyond the bound answered %d %s", status, text)
	}
	for field, value := range map[string]any{"ttl_s": 0, "idle_s": -1, "heartbeat_s": 0} {
		if status, _, _ := d.do("POST", "/v1/lease", body{field: value}); status != 400 {
			t.Errorf("%s %v answered %d", field, value, status)
		}
	}
	if status, _, _ := d.do("POST", "/v1/lease", body{"heartbeat_s": nil}); status != 200 {
		t.Fatal("the heartbeat cannot be dropped")
	}
	if l := d.lease(); l.TTL != 50 || l.Heartbeat != nil || l.Expires.Before(first.Add(30*time.Second)) || l.Max.Before(l.Expires) {
		t.Errorf("the end was at %v; now %+v", first, l)
	}
}

// leased is the lease as the wire shows it.
type leased struct {
	TTL       float64   `json:"ttl_s"`
	Heartbeat *float64  `json:"heartbeat_s"`
	Expires   time.Time `json:"expires_at"`
	Max       time.Time `json:"max_expires_at"`
}

func (d *daemon) lease() (l leased) {
	d.t.Helper()
	_, _, text := d.do("GET", "/v1/lease", nil)
	must(d.t, json.Unmarshal(text, &l))
	return l
}

func TestTheEntrypointRunsAndItsEndIsNotTheSandboxs(t *testing.T) {
	d := start(t, options{mark: "supervisor", config: map[string]any{"entrypoint": []string{"sh", "-c", "echo up; exit 1"}}})
	_, _, text := d.do("GET", "/v1/processes/entrypoint?wait=60", nil)
	contains(t, string(text), `"exit_code":1`)
	if r := d.run("echo alive", nil); string(r.stdout) != "alive\n" {
		t.Errorf("%+v", r)
	}
}

func TestTheEndOfTheSandboxIsNeverShownAsTheEndOfACommand(t *testing.T) {
	forEachMark(t, options{state: true}, func(t *testing.T, d *daemon) {
		stream := d.open(context.Background(), "POST", "/v1/processes?stream=full", body{"id": "x", "shell": "echo up; sleep 1000"})
		defer stream.Body.Close()
		waited := make(chan []byte, 1)
		go func() {
			response, err := d.try(context.Background(), "GET", "/v1/processes/x?wait=30", nil)
			if err != nil {
				waited <- nil // the connection broke: that is no exit either
				return
			}
			text, _ := io.ReadAll(response.Body)
			response.Body.Close()
			waited <- text
		}()
		time.Sleep(100 * time.Millisecond)
		d.do("POST", "/v1/shutdown", body{})
		for {
			kind, _, payload, err := readFrame(stream.Body)
			if kind == 6 && err == nil {
				t.Fatalf("the stream tells of an exit: %s", payload)
			}
			if err != nil {
				break
			}
		}
		if text := <-waited; strings.Contains(string(text), "exited") {
			t.Errorf("the wait tells of an exit: %s", text)
		}
	})
}
