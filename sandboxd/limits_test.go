package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestAMemoryBombEndsThatCommandWithTheReason(t *testing.T) {
	bomb := "x=xxxxxxxx; while :; do x=$x$x; done"
	for _, mark := range []string{"cgroup-v1", "cgroup-v2"} {
		t.Run(mark, func(t *testing.T) {
			d := start(t, options{mark: mark, memory: 128 << 20})
			r := d.run([]string{"sh", "-c", bomb}, nil)
			if !r.OOM || r.Signal == nil || *r.Signal != "KILL" {
				t.Errorf("the bomb itself: %+v", r)
			}
			r = d.run("sh -c '"+bomb+"'; echo survived", nil)
			if !r.OOM || string(r.stdout) != "survived\n" {
				t.Errorf("the bomb as a child: oom %v, %q", r.OOM, r.stdout)
			}
			r = d.run("echo next", nil)
			if r.OOM || string(r.stdout) != "next\n" {
				t.Errorf("the next command: oom %v, %q", r.OOM, r.stdout)
			}
			_, _, text := d.do("GET", "/v1/stats", nil)
			var stats struct {
				Kills int64 `json:"oom_kills"`
				Limit int64 `json:"memory_limit_bytes"`
			}
			must(t, json.Unmarshal(text, &stats))
			if stats.Kills < 2 || stats.Limit != 128<<20 {
				t.Errorf("stats: %s", text)
			}
		})
	}
}

// bombScript forks for ever, in new sessions.
const bombScript = "b() { setsid sh -c \"$1\" sh \"$1\" & }; s='while :; do setsid sh -c \"$1\" sh \"$1\" & done'; b \"$s\"; b \"$s\"; wait; while :; do :; done"

func TestAForkBombEndsWithItsTimeOutAndTheNextCommandRuns(t *testing.T) {
	for _, mark := range []string{"cgroup-v1", "cgroup-v2"} {
		t.Run(mark, func(t *testing.T) {
			d := start(t, options{mark: mark, pids: 40})
			r := d.run(bombScript, body{"timeout_s": 1.5})
			if !r.TimedOut || r.took > 8*time.Second || r.Refused == 0 {
				t.Errorf("timed_out %v after %v, %d forks refused", r.TimedOut, r.took, r.Refused)
			}
			if r := d.run("echo next", nil); string(r.stdout) != "next\n" {
				t.Errorf("the next command: %+v", r)
			}
		})
	}
}

func TestFiftyTimeOutsLeaveRoomUnderALimitOfProcesses(t *testing.T) {
	for _, mark := range []string{"cgroup-v1", "cgroup-v2"} {
		t.Run(mark, func(t *testing.T) {
			d := start(t, options{mark: mark, pids: 64})
			for range 50 {
				if r := d.run("for i in 1 2 3 4 5; do setsid sleep 500 & done; wait", body{"timeout_s": 0.03}); !r.TimedOut {
					t.Fatalf("%+v", r)
				}
			}
			if r := d.run("for i in 1 2 3 4 5 6 7 8 9; do sleep 0 & done; wait; echo fine", nil); string(r.stdout) != "fine\n" {
				t.Errorf("the fifty-first: %+v, stderr %q", r, r.stderr)
			}
		})
	}
}

func TestAFullLimitOfProcessesIsFreeWhenTheTimeOutIsTold(t *testing.T) {
	for _, mark := range []string{"cgroup-v1", "cgroup-v2"} {
		t.Run(mark, func(t *testing.T) {
			d := start(t, options{mark: mark, pids: 64})
			for range 5 {
				d.run("(i=0; while [ $i -lt 200 ]; do sleep 500 & i=$((i+1)); done) 2>/dev/null; while :; do :; done", body{"timeout_s": 0.5})
				if r := d.run("echo after", nil); string(r.stdout) != "after\n" {
					t.Fatalf("the next command: %+v", r.problem)
				}
			}
		})
	}
}

func TestNoRoomForAnotherProcessIsToldAsResources(t *testing.T) {
	d := start(t, options{mark: "cgroup-v1", pids: 2})
	d.do("POST", "/v1/processes", body{"id": "a", "argv": []string{"sleep", "100"}})
	d.do("POST", "/v1/processes", body{"id": "b", "argv": []string{"sleep", "100"}})
	if r := d.run([]string{"true"}, nil); r.problem.Code != "command_not_started" || r.problem.Reason != "resources" {
		t.Errorf("%+v", r.problem)
	}
	d.do("DELETE", "/v1/processes/a", nil)
	if r := d.run([]string{"true"}, nil); r.code() != 0 {
		t.Errorf("after one ended: %+v", r)
	}
}

func TestWithEveryDescriptorTakenACommandCanStillBeKilled(t *testing.T) {
	forEachMark(t, options{descriptors: 80}, func(t *testing.T, d *daemon) {
		seconds := strconv.Itoa(600000 + os.Getpid())
		started := 0
		for i := range 40 {
			code, _, text := d.do("POST", "/v1/processes", body{"id": fmt.Sprintf("p%d", i), "shell": "setsid sleep " + seconds + " & wait"})
			if code == 201 {
				started++
			} else {
				contains(t, string(text), `"reason":"resources"`)
			}
		}
		for range 60 { // what is left goes to connections that say nothing
			if c, err := net.Dial("unix", filepath.Join(d.folder, "socket")); err == nil {
				defer c.Close()
			}
		}
		for i := range started {
			if code, _, text := d.do("DELETE", fmt.Sprintf("/v1/processes/p%d", i), nil); code != 200 {
				t.Errorf("DELETE answered %d %s", code, text)
			}
		}
		if n := alive("sleep", seconds); started == 0 || started == 40 || n != 0 {
			t.Errorf("%d started, %d are left", started, n)
		}
	})
}
