package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestOutputIsByteExact(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		cases := map[string]string{
			`printf 'a\n\n\nb\n\n'`: "a\n\n\nb\n\n", `printf abc`: "abc", `printf 'a\rb\rc'`: "a\rb\rc",
			`printf 'a\0\377'`: "a\x00\xff", `printf ''`: "", `printf '\303\251'`: "é",
		}
		for script, due := range cases {
			if r := d.run(script, nil); string(r.stdout) != due {
				t.Errorf("%s gave %q", script, r.stdout)
			}
		}
		file := filepath.Join(d.folder, "random")
		r := d.run("head -c 5000000 /dev/urandom | tee "+file, body{"mode": "full"})
		content, err := os.ReadFile(file)
		must(t, err)
		if !bytes.Equal(content, r.stdout) {
			t.Errorf("%d random bytes came back as %d others", len(content), len(r.stdout))
		}
	})
}

func TestStreamsStayApartOrMergeInOrder(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		script := "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done"
		r := d.run(script, nil)
		if strings.Contains(string(r.stdout), "e") || strings.Contains(string(r.stderr), "o") || r.Out != 27 || r.Err != 27 {
			t.Errorf("apart: %q and %q", r.stdout, r.stderr)
		}
		var due strings.Builder
		for i := 1; i <= 9; i++ {
			fmt.Fprintf(&due, "o%d\ne%d\n", i, i)
		}
		if r = d.run(script, body{"merge": true}); string(r.stdout) != due.String() || r.Err != 0 {
			t.Errorf("merged: %q", r.stdout)
		}
	})
}

func TestTheBoundedViewKeepsHeadAndTailAndTheWholeCanBeFetched(t *testing.T) {
	d := start(t, options{mark: "supervisor", state: true})
	var whole bytes.Buffer
	for i := 1; i <= 300000; i++ {
		fmt.Fprintln(&whole, i)
	}
	due := whole.Bytes()
	r := d.run("seq 1 300000", body{"id": "seq", "output_limit": 10001})
	head, tail := due[:5000], due[len(due)-5001:]
	if !bytes.Equal(r.stdout, append(append([]byte{}, head...), tail...)) {
		t.Errorf("the bounded view has %d bytes", len(r.stdout))
	}
	gap := [3]int64{1, 5000, int64(len(due) - 5001)}
	if len(r.gaps) != 1 || r.gaps[0] != gap || r.Out != int64(len(due)) || r.LostOut != 0 {
		t.Errorf("gaps %v where %v is due; %d bytes, %d lost", r.gaps, gap, r.Out, r.LostOut)
	}
	if _, _, raw := d.do("GET", "/v1/processes/seq/output/stdout", nil); !bytes.Equal(raw, due) {
		t.Errorf("the whole has %d bytes", len(raw))
	}
	code, h, part := d.do("GET", "/v1/processes/seq/output/stdout", nil, "Range", "bytes=100-199")
	if code != 206 || !bytes.Equal(part, due[100:200]) || h.Get("Content-Range") != fmt.Sprintf("bytes 100-199/%d", len(due)) {
		t.Errorf("a range answered %d %q", code, part)
	}
	if code, _, _ := d.do("GET", "/v1/processes/seq/output/stdout", nil, "Range", "bytes=99999999-"); code != 416 {
		t.Errorf("a range beyond the end answered %d", code)
	}
	for _, offset := range []int{0, 4000, 5000, 6000, len(due) - 100} {
		r := d.read(d.open(context.Background(), "GET", fmt.Sprintf("/v1/processes/seq/stream?mode=bounded&stdout=%d", offset), nil), time.Now())
		var want []byte
		if offset < 5000 {
			want = append(want, due[offset:5000]...)
		}
		want = append(want, due[max(offset, len(due)-5001):]...)
		if !bytes.Equal(r.stdout, want) {
			t.Errorf("bounded from %d: %d bytes where %d are due", offset, len(r.stdout), len(want))
		}
	}
}

func TestASmallLimitCutsNothingThatFits(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	for _, c := range []struct {
		limit, size int
		gaps        int
	}{{0, 0, 0}, {0, 5, 1}, {1, 1, 0}, {1, 2, 1}, {10, 10, 0}, {10, 11, 1}} {
		r := d.run(fmt.Sprintf("head -c %d /dev/zero", c.size), body{"output_limit": c.limit})
		if len(r.stdout) != min(c.limit, c.size) || len(r.gaps) != c.gaps || r.Out != int64(c.size) {
			t.Errorf("limit %d, %d bytes: got %d with gaps %v", c.limit, c.size, len(r.stdout), r.gaps)
		}
	}
}

func TestBeyondTheSpoolTheFirstAndTheNewestHalfStay(t *testing.T) {
	for _, state := range []bool{true, false} {
		d := start(t, options{mark: "supervisor", state: state, config: map[string]any{"spool_limit_bytes": 1 << 20}})
		var whole bytes.Buffer
		for i := 1; i <= 500000; i++ {
			fmt.Fprintln(&whole, i)
		}
		due := whole.Bytes()
		r := d.run("seq 1 500000", body{"id": "x"})
		_, h, raw := d.do("GET", "/v1/processes/x/output/stdout", nil)
		half := 1 << 19
		if !bytes.Equal(raw, append(append([]byte{}, due[:half]...), due[len(due)-half:]...)) {
			t.Errorf("kept %d bytes of %d", len(raw), len(due))
		}
		if lost := fmt.Sprintf("%d-%d", half, len(due)-half-1); h.Get("Orchard-Lost") != lost || r.LostOut != int64(len(due)-2*half) {
			t.Errorf("told as lost: %q and %d, due: %q", h.Get("Orchard-Lost"), r.LostOut, lost)
		}
	}
}

func TestAFullDiskStallsNothing(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	d := start(t, options{mark: "supervisor", config: map[string]any{"state_dir": disk}})
	r := d.run("seq 1 1000000", body{"id": "x"})
	_, h, raw := d.do("GET", "/v1/processes/x/output/stdout", nil)
	if r.code() != 0 || !bytes.HasPrefix(raw, []byte("1\n2\n")) || !bytes.HasSuffix(raw, []byte("\n999999\n1000000\n")) || h.Get("Orchard-Lost") == "" {
		t.Errorf("code %d, %d bytes kept, lost %q", r.code(), len(raw), h.Get("Orchard-Lost"))
	}
	if int64(len(raw)) != r.Out-r.LostOut {
		t.Errorf("%d bytes kept of %d with %d lost", len(raw), r.Out, r.LostOut)
	}
}

func rss(t *testing.T, pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	must(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	must(t, err)
	return pages * os.Getpagesize()
}

func TestNobodyReadingALotCostsNoMemory(t *testing.T) {
	d := start(t, options{mark: "supervisor", state: true, config: map[string]any{"spool_limit_bytes": 8 << 20}})
	d.run("true", nil)
	before := rss(t, d.process.Process.Pid)
	d.do("POST", "/v1/processes", body{"id": "big", "shell": "head -c 200000000 /dev/zero; echo tail"})
	d.do("GET", "/v1/processes/big?wait=60", nil)
	if grown := rss(t, d.process.Process.Pid) - before; grown > 24<<20 {
		t.Errorf("the daemon grew by %d bytes", grown)
	}
	r := d.read(d.open(context.Background(), "GET", "/v1/processes/big/stream?mode=bounded", nil), time.Now())
	if r.Out != 200000005 || !bytes.HasSuffix(r.stdout, []byte("\x00tail\n")) {
		t.Errorf("%d bytes, ending %q", r.Out, r.stdout[len(r.stdout)-8:])
	}
}

func TestTwoHundredAbortedRequestsLeaveNothing(t *testing.T) {
	d := start(t, options{mark: "supervisor", state: true})
	d.do("POST", "/v1/processes", body{"id": "talker", "shell": "while :; do echo x; sleep 0.01; done"})
	d.do("POST", "/v1/processes", body{"id": "deaf", "argv": []string{"sleep", "1000"}, "stdin": "open"})
	before := d.descriptors()
	var wait sync.WaitGroup
	for i := range 200 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%21)*time.Millisecond)
			defer cancel()
			switch i % 4 {
			case 0:
				abort(d.try(ctx, "GET", "/v1/processes/talker/stream?mode=full", nil))
			case 1:
				abort(d.try(ctx, "POST", "/v1/processes/deaf/stdin?offset=0", bytes.Repeat([]byte("x"), 4<<20)))
			case 2:
				abort(d.try(ctx, "POST", "/v1/processes?stream=full", body{"id": fmt.Sprintf("a%d", i), "shell": "sleep 0.2"}))
			case 3:
				abort(d.try(ctx, "GET", "/v1/processes/talker?wait=30", nil))
			}
		}()
	}
	wait.Wait()
	until(t, fmt.Sprintf("there are %d descriptors again", before), func() bool { return d.descriptors() <= before+4 })
	if r := d.run("echo ok", nil); string(r.stdout) != "ok\n" {
		t.Errorf("afterwards a command answered %q", r.stdout)
	}
}

// descriptors is how many the daemon has open.
func (d *daemon) descriptors() int {
	d.client.CloseIdleConnections() // an aborted dial may still end as a spare connection of the client's
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.process.Process.Pid))
	must(d.t, err)
	return len(names)
}

// Writers of one input write one after the other: a second for each that has left would be felt.
func TestWritersThatLeftDoNotHoldUpTheNext(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	d.do("POST", "/v1/processes", body{"id": "deaf", "argv": []string{"sleep", "1000"}, "stdin": "open"})
	before := d.descriptors()
	for range 2 * int(soon.Seconds()) {
		c, err := net.Dial("unix", filepath.Join(d.folder, "socket"))
		must(t, err)
		_, err = fmt.Fprintf(c, "POST /v1/processes/deaf/stdin?offset=0 HTTP/1.1\r\nHost: x\r\nOrchard-Sandbox: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 200000\r\n\r\n%s", testID, testToken, bytes.Repeat([]byte("x"), 100000))
		must(t, err)
		c.Close()
	}
	until(t, fmt.Sprintf("there are %d descriptors again", before), func() bool { return d.descriptors() <= before })
}

func abort(response *http.Response, err error) {
	if err == nil {
		_ = response.Body.Close()
	}
}

func TestALongStreamComesWhole(t *testing.T) {
	d := start(t, options{mark: "supervisor", state: true})
	r := d.run("head -c 30000000 /dev/zero", body{"mode": "full"})
	sum := sha256.Sum256(make([]byte, 30000000))
	got := sha256.Sum256(r.stdout)
	if hex.EncodeToString(got[:]) != hex.EncodeToString(sum[:]) {
		t.Errorf("%d bytes came", len(r.stdout))
	}
}
