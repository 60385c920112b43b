package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var sleeps atomic.Int64

// lasting is a span in seconds that nothing else on this machine sleeps for, and longer than any test.
func lasting() string { return fmt.Sprintf("%d%05d", os.Getpid(), sleeps.Add(1)) }

// alive finds processes whose command line is exactly the words given.
func alive(words ...string) int {
	count := 0
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err == nil && string(text) == strings.Join(words, "\x00")+"\x00" {
			count++
		}
	}
	return count
}

func TestATimeOutEndsTheWholeTree(t *testing.T) {
	scripts := map[string]string{
		"foreground":    "sleep %s; echo hello",
		"background":    "sleep %s & sleep 1000",
		"new session":   "setsid sleep %s & wait",
		"double fork":   "(setsid sh -c 'sleep %s & exit' &) ; sleep 1000",
		"ignores TERM":  "trap '' TERM; sleep %s; sleep 1000",
		"cleared env":   "env -i setsid setsid sleep %s; sleep 1000",
		"nobody waits":  "sleep %s & exec sleep 1000",
		"stopped child": "sleep %s & kill -STOP $!; wait",
	}
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		var wait sync.WaitGroup
		for name, script := range scripts {
			seconds := lasting()
			wait.Add(1)
			go func() {
				defer wait.Done()
				r := (&daemon{t: t, client: d.client}).run(fmt.Sprintf(script, seconds), body{"timeout_s": 0.3, "id": strings.ReplaceAll(name, " ", "-")})
				if !r.TimedOut || r.took > soon {
					t.Errorf("%s: timed_out %v after %v", name, r.TimedOut, r.took)
				}
				if n := alive("sleep", seconds); n != 0 && !r.overdue(0.3) {
					t.Errorf("%s: %d processes are left", name, n)
				}
				until(t, name+": nothing is left", func() bool { return alive("sleep", seconds) == 0 })
			}()
		}
		wait.Wait()
		if r := d.run("echo next", nil); string(r.stdout) != "next\n" {
			t.Errorf("the next command answered %q", r.stdout)
		}
	})
}

func TestABackgroundChildDoesNotHoldTheAnswer(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		for _, script := range []string{"sleep 1000 & echo started", "yes >&2 & echo started"} {
			r := d.run(script, nil)
			if string(r.stdout) != "started\n" || r.code() != 0 || r.took > soon {
				t.Errorf("%s: %q, code %d after %v", script, r.stdout, r.code(), r.took)
			}
		}
	})
}

func TestABackgroundChildLivesOnAndIsStillHeard(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		d.run("(sleep 0.3; echo later; exec sleep 30) & echo first", body{"id": "server"})
		until(t, "the child is heard", func() bool {
			_, _, text := d.do("GET", "/v1/processes/server/output/stdout", nil)
			return string(text) == "first\nlater\n"
		})
	})
}

func TestDeleteKillsATreeWhoseMainProcessHasEnded(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		seconds := lasting()
		d.run("setsid sleep "+seconds+" & echo", body{"id": "x"})
		until(t, "the background child lives on", func() bool { return alive("sleep", seconds) == 1 })
		if code, _, _ := d.do("DELETE", "/v1/processes/x", nil); code != 200 {
			t.Fatalf("DELETE answered %d", code)
		}
		if alive("sleep", seconds) != 0 {
			t.Error("DELETE answered while a process was left")
		}
	})
}

func TestTheExitNeverComesBeforeTheLastOutput(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		var wait sync.WaitGroup
		for worker := range 10 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for i := range 10 {
					r := (&daemon{t: t, client: d.client}).run("echo x; exit 3", body{"id": fmt.Sprintf("w%d-%d", worker, i)})
					if string(r.stdout) != "x\n" || r.code() != 3 {
						t.Errorf("%q, code %d", r.stdout, r.code())
					}
				}
			}()
		}
		wait.Wait()
	})
}

func TestHowACommandEndedIsToldInSeparateFields(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		cases := []struct {
			script, signal string
			code           int
		}{{"exit 124", "", 124}, {"exit 0", "", 0}, {"kill -SEGV $$", "SEGV", -1}, {"kill -9 $$", "KILL", -1}, {"sh -c 'kill -9 $$'; exit $?", "", 137}}
		for _, c := range cases {
			r := d.run(c.script, nil)
			signal := ""
			if r.Signal != nil {
				signal = *r.Signal
			}
			if r.code() != c.code || signal != c.signal || r.TimedOut || r.OOM {
				t.Errorf("%s: code %d, signal %q, timed_out %v, oom %v", c.script, r.code(), signal, r.TimedOut, r.OOM)
			}
		}
	})
}

func TestAStolenSupervisorTakesItsTreeWithIt(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	seconds := lasting()
	r := d.run("setsid sleep "+seconds+" & sleep 0.1; kill -9 $PPID; sleep "+seconds, nil)
	if r.Signal == nil || *r.Signal != "KILL" {
		t.Errorf("ended as %+v", r)
	}
	until(t, "no process outlives its killed supervisor", func() bool { return alive("sleep", seconds) == 0 })
	if r := d.run("echo ok", nil); string(r.stdout) != "ok\n" {
		t.Errorf("the next command answered %q", r.stdout)
	}
}

func TestASupervisorCannotBeStopped(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	for range 10 {
		if r := d.run("kill -STOP $PPID; echo done; exit 4", body{"timeout_s": 60}); r.code() != 4 || r.TimedOut {
			t.Fatalf("%+v", r)
		}
	}
}

func TestTheSameIDStartsOnce(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		file := filepath.Join(d.folder, "once")
		var wait sync.WaitGroup
		for range 20 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				(&daemon{t: t, client: d.client}).run("echo x >> "+file, body{"id": "one"})
			}()
		}
		wait.Wait()
		text, _ := os.ReadFile(file)
		if string(text) != "x\n" {
			t.Errorf("the file holds %q", text)
		}
		code, _, _ := d.do("POST", "/v1/processes", body{"id": "one", "nonsense": 1, "timeout_s": "x"})
		if code != http.StatusOK {
			t.Errorf("a known id with another body answered %d", code)
		}
	})
}

func TestAReaderThatVanishesWedgesNothingAndAnotherContinues(t *testing.T) {
	forEachMark(t, options{state: true}, func(t *testing.T, d *daemon) {
		ctx, cancel := context.WithCancel(context.Background())
		response := d.open(ctx, "POST", "/v1/processes?stream=full", body{"id": "long", "shell": "seq 1 200000; sleep 0.3; echo end"})
		head := make([]byte, 4096)
		_, _ = response.Body.Read(head)
		cancel()
		response.Body.Close()
		again := d.open(context.Background(), "GET", "/v1/processes/long/stream?mode=full&stdout=100", nil)
		defer again.Body.Close()
		r := d.read(again, time.Now())
		if r.code() != 0 || int64(len(r.stdout)) != r.Out-100 || !strings.HasSuffix(string(r.stdout), "end\n") {
			t.Errorf("continued with %d of %d bytes, code %d", len(r.stdout), r.Out, r.code())
		}
	})
}

func TestKillOnDisconnectEndsTheCommandWithItsReader(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		ctx, cancel := context.WithCancel(context.Background())
		response := d.open(ctx, "POST", "/v1/processes?stream=full", body{"id": "bound", "shell": "sleep 1000", "kill_on_disconnect": true})
		cancel()
		response.Body.Close()
		_, _, text := d.do("GET", "/v1/processes/bound?wait=60", nil)
		contains(t, string(text), `"cancelled":true`)
	})
}

func TestStdinArrivesWholeAndOnce(t *testing.T) {
	forEachMark(t, options{state: true}, func(t *testing.T, d *daemon) {
		if r := d.run("cat; echo after", nil); string(r.stdout) != "after\n" {
			t.Errorf("a closed stdin gave %q", r.stdout)
		}
		data := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
		r := d.run("cat", body{"stdin_data": base64.StdEncoding.EncodeToString([]byte(data)), "output_limit": 1 << 21})
		if string(r.stdout) != data {
			t.Errorf("%d bytes of 1 MiB of stdin_data came back", len(r.stdout))
		}
		d.do("POST", "/v1/processes", body{"id": "cat", "shell": "cksum", "stdin": "open"})
		big := strings.Repeat("x", 8<<20)
		for range 2 { // the second time is a retry and adds nothing
			code, _, text := d.do("POST", "/v1/processes/cat/stdin?offset=0", []byte(big))
			if code != 200 || string(text) != `{"accepted":8388608}` {
				t.Fatalf("stdin answered %d %s", code, text)
			}
		}
		if code, _, _ := d.do("POST", "/v1/processes/cat/stdin?offset=9000000", []byte("x")); code != 409 {
			t.Errorf("a gap answered %d", code)
		}
		d.do("POST", "/v1/processes/cat/stdin?offset=8388608&eof=1", []byte("end"))
		if code, _, _ := d.do("POST", "/v1/processes/cat/stdin?offset=8388608&eof=1", []byte("end")); code != 200 {
			t.Errorf("the retry of the end answered %d", code)
		}
		d.do("GET", "/v1/processes/cat?wait=60", nil)
		_, _, sum := d.do("GET", "/v1/processes/cat/output/stdout", nil)
		contains(t, string(sum), " 8388611")
	})
}

func TestSignalsReachTheMainProcessOrTheTree(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		for _, signal := range []any{"USR1", "SIGUSR1", 10, "10"} {
			id := fmt.Sprintf("s-%v-%T", signal, signal)
			ready := filepath.Join(d.folder, id)
			d.do("POST", "/v1/processes", body{"id": id, "shell": "trap 'echo got; exit 7' USR1; >" + ready + "; while :; do sleep 0.01; done"})
			until(t, "the trap is set", func() bool { _, err := os.Stat(ready); return err == nil })
			d.do("POST", "/v1/processes/"+id+"/signal", body{"signal": signal})
			_, _, text := d.do("GET", "/v1/processes/"+id+"?wait=60", nil)
			contains(t, string(text), `"exit_code":7`)
		}
		seconds := lasting()
		d.do("POST", "/v1/processes", body{"id": "tree", "shell": "setsid sleep " + seconds + " & wait"})
		until(t, "the descendant runs", func() bool { return alive("sleep", seconds) == 1 })
		d.do("POST", "/v1/processes/tree/signal", body{"signal": "TERM", "tree": true})
		d.do("GET", "/v1/processes/tree?wait=60", nil)
		until(t, "the descendant got the signal", func() bool { return alive("sleep", seconds) == 0 })
	})
}

func TestATerminalIsOneAndCanBeResized(t *testing.T) {
	if _, err := os.Stat("/dev/ptmx"); err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		d.do("POST", "/v1/processes", body{"id": "t", "shell": "stty size; read x; stty size; echo got $x", "pty": body{"cols": 80, "rows": 24}})
		code, _, _ := d.do("POST", "/v1/processes/t/resize", body{"cols": 100, "rows": 30})
		if code != 200 {
			t.Fatalf("resize answered %d", code)
		}
		d.do("POST", "/v1/processes/t/stdin?offset=0", []byte("hello\n"))
		d.do("GET", "/v1/processes/t?wait=60", nil)
		_, _, text := d.do("GET", "/v1/processes/t/output/stdout", nil)
		contains(t, string(text), "30 100\r\n")
		contains(t, string(text), "got hello\r\n")
	})
}
