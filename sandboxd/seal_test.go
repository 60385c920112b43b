package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// verdict is an answer of POST /v1/seal.
type verdict struct {
	Sealed  bool `json:"sealed"`
	Denied  bool `json:"denied"`
	WasOpen bool `json:"was_open"`
}

func (d *daemon) seal(targets ...string) (v verdict) {
	d.t.Helper()
	status, _, text := d.do("POST", "/v1/seal", body{"dial": targets})
	if status != 200 {
		d.t.Fatalf("answered %d %s", status, text)
	}
	must(d.t, json.Unmarshal(text, &v))
	return v
}

func (d *daemon) healthy() (sealed bool) {
	d.t.Helper()
	status, _, text := d.do("GET", "/v1/health", nil)
	var told struct {
		Sealed *bool `json:"sealed"`
	}
	must(d.t, json.Unmarshal(text, &told))
	if status != 200 || told.Sealed == nil {
		d.t.Fatalf("health answered %d %s", status, text)
	}
	return *told.Sealed
}

func startUnsealed(t *testing.T, config map[string]any) *daemon {
	if config["seal"] == nil {
		config["seal"] = body{"timeout_s": 60}
	}
	return start(t, options{mark: "supervisor", state: true, config: config})
}

// reachable is an address that answers until it is closed.
func reachable(t *testing.T) (target string, shut func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String(), func() { l.Close() }
}

// silent is an address that drops what comes, as many networks deny.
func silent(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, syscall.Listen(fd, 0))
	at, err := syscall.Getsockname(fd)
	must(t, err)
	target := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.(*syscall.SockaddrInet4).Port}).String()
	first, err := net.Dial("tcp", target) // which the queue has room for, however long it takes
	must(t, err)
	t.Cleanup(func() { first.Close() })
	for {
		c, err := net.DialTimeout("tcp", target, 200*time.Millisecond)
		if err != nil {
			return target // nobody accepts, and the queue is full
		}
		t.Cleanup(func() { c.Close() })
	}
}

func TestNothingRunsBeforeTheNetworkIsSeenToBeShut(t *testing.T) {
	d := startUnsealed(t, map[string]any{"entrypoint": []string{"sh", "-c", "echo up"}})
	target, shut := reachable(t)
	for _, path := range []string{"POST /v1/processes", "GET /v1/processes/entrypoint", "GET /v1/files?path=/etc/hosts", "PUT /v1/files?path=/tmp/x",
		"GET /v1/ports/22", "POST /v1/reverse/0", "POST /v1/tokens", "GET /v1/stats"} {
		method, path, _ := strings.Cut(path, " ")
		status, _, text := d.do(method, path, body{"id": "x", "argv": []string{"true"}})
		var p problem
		must(t, json.Unmarshal(text, &p))
		if status != 503 || p.Code != "not_sealed" {
			t.Errorf("%s %s answered %d %s", method, path, status, text)
		}
	}
	if status, _, _ := d.do("POST", "/v1/lease", body{"heartbeat": true}); status != 200 {
		t.Errorf("renewing answered %d", status)
	}
	for range 3 {
		if v := d.seal(target); v.Sealed || v.Denied || !v.WasOpen || d.healthy() {
			t.Fatalf("open, and yet %+v", v)
		}
	}
	shut()
	if v := d.seal(target); v.Sealed || !v.Denied || d.healthy() {
		t.Fatalf("one witness suffices: %+v", v)
	}
	if v := d.seal(target); !v.Sealed || !v.WasOpen || !d.healthy() {
		t.Fatalf("two witnesses do not suffice: %+v", v)
	}
	if status, _, text := d.do("GET", "/v1/processes/entrypoint?wait=10", nil); status != 200 {
		t.Errorf("the entrypoint: %d %s", status, text)
	}
	if r := d.run("echo in", nil); string(r.stdout) != "in\n" {
		t.Errorf("%+v", r)
	}
	if v := d.seal("127.0.0.1:1"); !v.Sealed {
		t.Errorf("the seal is broken: %+v", v)
	}
}

func TestSilenceIsDenialToo(t *testing.T) {
	d := startUnsealed(t, map[string]any{})
	target := silent(t)
	if v := d.seal(target); v.Sealed || !v.Denied || v.WasOpen {
		t.Fatalf("got %+v", v)
	}
	if v := d.seal(target); !v.Sealed {
		t.Fatalf("got %+v", v)
	}
}

func TestWitnessesWhoSpeakAcrossEachOtherSealToo(t *testing.T) {
	d := startUnsealed(t, map[string]any{})
	target := silent(t)
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 3 {
				if d.seal(target).Sealed {
					return
				}
			}
			t.Error("three words of one of four do not suffice")
		}()
	}
	all.Wait()
}

func TestTheLeaseBeginsWhenTheSandboxCanBeUsed(t *testing.T) {
	for _, due := range []string{"idle", "heartbeat", "ttl"} {
		d := startUnsealed(t, map[string]any{"lease": map[string]any{due + "_s": 0.4}})
		target, shut := reachable(t)
		shut()
		time.Sleep(600 * time.Millisecond)
		d.seal(target)
		if v := d.seal(target); !v.Sealed {
			t.Fatalf("it ended, or %+v", v)
		}
		if reason, _ := d.death(); reason != due {
			t.Errorf("died of %q, not of %q", reason, due)
		}
	}
}

func TestEachTargetMustBeDeniedAndBothWitnessesSpeakOfTheSame(t *testing.T) {
	d := startUnsealed(t, map[string]any{})
	open, _ := reachable(t)
	first, shut := reachable(t)
	shut()
	if v := d.seal(first, open); v.Denied || !v.WasOpen {
		t.Errorf("one of two is open: %+v", v)
	}
	d.seal(first)
	other, shut := reachable(t)
	shut()
	if v := d.seal(other); v.Sealed {
		t.Errorf("each witness spoke of another target: %+v", v)
	}
	if v := d.seal(other); !v.Sealed {
		t.Errorf("got %+v", v)
	}
}

func TestAFaultOfOurOwnIsNoDenial(t *testing.T) {
	d := startUnsealed(t, map[string]any{})
	for range 2 {
		if v := d.seal("[fe80::1]:1"); v.Sealed || v.Denied { // EINVAL: no zone
			t.Errorf("got %+v", v)
		}
	}
	for _, targets := range [][]string{{}, {"localhost:80"}, {"127.0.0.1"}, {"127.0.0.1:0"}, make([]string, 17)} {
		if status, _, text := d.do("POST", "/v1/seal", body{"dial": targets}); status != 400 || !strings.Contains(string(text), `"field":"dial"`) {
			t.Errorf("%q answered %d %s", targets, status, text)
		}
	}
}

func TestWhatIsNeverSealedEndsAndSaysSo(t *testing.T) {
	target, _ := reachable(t)
	if reason, detail := startUnsealed(t, map[string]any{"seal": body{"timeout_s": 0.1}}).death(); reason != "not_sealed" || strings.Contains(detail, target) {
		t.Errorf("died of %q (%q)", reason, detail)
	}
	within := map[string]any{"seal": body{"timeout_s": 0.1, "asked_within_s": 1.5}}
	if reason, detail := startUnsealed(t, within).death(); reason != "not_sealed" || !strings.Contains(detail, "within 1.5s") {
		t.Errorf("died of %q (%q)", reason, detail)
	}
	for timeout := 0.5; ; timeout *= 2 {
		d := startUnsealed(t, map[string]any{"seal": body{"timeout_s": timeout}})
		response, err := d.try(context.Background(), "POST", "/v1/seal", body{"dial": []string{target}})
		heard := err == nil && response.StatusCode == 200
		abort(response, err)
		reason, detail := d.death()
		if !heard && timeout < soon.Seconds() {
			continue // it ended before it was asked
		}
		if reason != "not_sealed" || !strings.Contains(detail, target) {
			t.Errorf("died of %q (%q)", reason, detail)
		}
		return
	}
}

// TestTheTimeToBeSealedBeginsWithTheFirstQuestion asks once the time has passed twice over since the start.
func TestTheTimeToBeSealedBeginsWithTheFirstQuestion(t *testing.T) {
	target, _ := reachable(t)
	d := startUnsealed(t, map[string]any{"seal": body{"timeout_s": 0.4, "asked_within_s": 1000}})
	time.Sleep(800 * time.Millisecond)
	began := time.Now()
	abort(d.try(context.Background(), "POST", "/v1/seal", body{"dial": []string{target}})) // it may end before it answers
	reason, detail := d.death()
	if reason != "not_sealed" || !strings.Contains(detail, target) || time.Since(began) < 400*time.Millisecond {
		t.Errorf("died of %q (%q) after %s", reason, detail, time.Since(began))
	}
}

func TestAnUnsealedSandboxCanBeDeleted(t *testing.T) {
	d := startUnsealed(t, map[string]any{})
	if status, _, _ := d.do("POST", "/v1/shutdown", body{}); status != 202 {
		t.Fatalf("answered %d", status)
	}
	if reason, _ := d.death(); reason != "deleted" {
		t.Errorf("died of %q", reason)
	}
}

func TestASandboxThatNeedsNoSealIsSealed(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	if v := d.seal("127.0.0.1:1"); !v.Sealed || !d.healthy() {
		t.Errorf("got %+v", v)
	}
}
