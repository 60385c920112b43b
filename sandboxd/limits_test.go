package main

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
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
			timeout := 1.5
			r := d.run(bombScript, body{"timeout_s": timeout})
			for r.TimedOut && r.Refused == 0 && timeout < soon.Seconds() { // it had no time yet to fill the limit
				timeout *= 2
				r = d.run(bombScript, body{"timeout_s": timeout})
			}
			if !r.TimedOut || r.Refused == 0 {
				t.Errorf("timed_out %v after %v, %d forks refused", r.TimedOut, r.took, r.Refused)
			}
			d.runsNext(r.overdue(timeout), "echo next", "next\n")
		})
	}
}

func TestFiftyTimeOutsLeaveRoomUnderALimitOfProcesses(t *testing.T) {
	for _, mark := range []string{"cgroup-v1", "cgroup-v2"} {
		t.Run(mark, func(t *testing.T) {
			d := start(t, options{mark: mark, pids: 64})
			overdue, deadline := false, time.Now().Add(5*soon)
			for n := 0; n < 50; {
				r := d.run("for i in 1 2 3 4 5; do setsid sleep 500 & done; wait", body{"timeout_s": 0.03})
				overdue = overdue || r.overdue(0.03)
				if r.TimedOut {
					n++
				} else if !overdue || time.Now().After(deadline) {
					t.Fatalf("%+v", r)
				}
			}
			d.runsNext(overdue, "for i in 1 2 3 4 5 6 7 8 9; do sleep 0 & done; wait; echo fine", "fine\n")
		})
	}
}

// runsNext runs the command after a time-out, which has room at once unless the time-out was told overdue.
func (d *daemon) runsNext(overdue bool, script, due string) {
	d.t.Helper()
	r := d.run(script, nil)
	for deadline := time.Now().Add(soon); overdue && string(r.stdout) != due && time.Now().Before(deadline); r = d.run(script, nil) {
		time.Sleep(20 * time.Millisecond)
	}
	if string(r.stdout) != due {
		d.t.Fatalf("the next command: %+v, stderr %q", r, r.stderr)
	}
}

func TestAFullLimitOfProcessesIsFreeWhenTheTimeOutIsTold(t *testing.T) {
	for _, mark := range []string{"cgroup-v1", "cgroup-v2"} {
		t.Run(mark, func(t *testing.T) {
			d := start(t, options{mark: mark, pids: 64})
			for range 5 {
				r := d.run("(i=0; while [ $i -lt 200 ]; do sleep 500 & i=$((i+1)); done) 2>/dev/null; while :; do :; done", body{"timeout_s": 0.5})
				d.runsNext(r.overdue(0.5), "echo after", "after\n")
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
		seconds := lasting()
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
