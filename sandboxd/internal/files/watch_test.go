package files

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// watcher reads the lines of a watch as they come.
type watchLines struct {
	b    *box
	body io.Closer
	out  chan map[string]any
}

func (b *box) watching(args ...string) *watchLines {
	b.t.Helper()
	got, err := b.client.Do(b.request("GET", "files/watch", nil, args...))
	b.must(err)
	w := &watchLines{b: b, body: got.Body, out: make(chan map[string]any, 100000)}
	go func() {
		defer close(w.out)
		for scanner := bufio.NewScanner(got.Body); scanner.Scan(); {
			w.out <- answer{body: scanner.Text()}.fields(b.t)
		}
	}()
	b.t.Cleanup(func() { _ = got.Body.Close() })
	w.expect("ready")
	return w
}

// expect reads on until a line says this; others may stand between.
func (w *watchLines) expect(want string) {
	w.b.t.Helper()
	var seen []string
	timeout := time.After(soon)
	for {
		select {
		case e, open := <-w.out:
			got := strings.TrimSpace(fmt.Sprint(e["event"], " ", decoded(w.b.t, e, "path")))
			if from := decoded(w.b.t, e, "from"); from != "" {
				got += " from " + from
			}
			if got == want || (want == "end" && e["end"] == true) {
				return
			}
			seen = append(seen, got)
			if !open {
				w.b.t.Fatalf("the stream ended before %q; it said %q", want, seen)
			}
		case <-timeout:
			w.b.t.Fatalf("no %q; only %q", want, seen)
		}
	}
}

// until reads on to the first line about path.
func (w *watchLines) until(path string) (out []map[string]any) {
	w.b.t.Helper()
	for {
		select {
		case e := <-w.out:
			if out = append(out, e); e["path"] == path {
				return out
			}
		case <-time.After(soon):
			w.b.t.Fatalf("nothing of %s; only %v", path, out)
		}
	}
}

func TestWatchATree(t *testing.T) {
	b := newBox(t, "")
	b.zoo()
	w := b.watching("path", "zoo")
	b.put("w/zoo/new", "1")
	w.expect("created /w/zoo/new")
	w.expect("modified /w/zoo/new")
	b.put("w/zoo/sub/deep/y", "more")
	w.expect("modified /w/zoo/sub/deep/y")
	b.must(os.Chmod(b.path("w/zoo/a"), 0o600))
	w.expect("modified /w/zoo/a")
	b.must(os.Remove(b.path("w/zoo/new")))
	w.expect("removed /w/zoo/new")
	b.must(os.Rename(b.path("w/zoo/a"), b.path("w/zoo/sub/a2")))
	w.expect("moved /w/zoo/sub/a2 from /w/zoo/a")
	b.must(os.MkdirAll(b.path("w/zoo/n1/n2/n3"), 0o755))
	w.expect("created /w/zoo/n1/n2/n3")
	b.put("w/zoo/n1/n2/n3/f\xff", "")
	w.expect("created /w/zoo/n1/n2/n3/f\xff")
	b.must(os.Rename(b.path("w/zoo/n1"), b.path("w/zoo/m1")))
	w.expect("moved /w/zoo/m1 from /w/zoo/n1")
	b.put("w/zoo/m1/n2/late", "")
	w.expect("created /w/zoo/m1/n2/late")
	b.must(os.Rename(b.path("w/zoo/m1"), b.path("w/away")))
	w.expect("removed /w/zoo/m1")
	b.put("w/away/n2/stray", "")
	b.put("w/zoo/marker", "")
	for _, e := range w.until("/w/zoo/marker") {
		if strings.Contains(fmt.Sprint(e), "stray") {
			t.Errorf("what left the tree is still watched: %v", e)
		}
	}
	b.must(os.Rename(b.path("w/away"), b.path("w/zoo/back")))
	w.expect("created /w/zoo/back/n2/late")
	b.put("w/zoo/back/n2/again", "")
	w.expect("created /w/zoo/back/n2/again")
	b.ok("PUT", "files", "x", "path", "zoo/put")
	w.expect("modified /w/zoo/put")
	b.must(os.RemoveAll(b.path("w/zoo")))
	w.expect("removed /w/zoo/sub")
	w.expect("removed /w/zoo/")
	w.expect("end")
}

// A busy machine may keep a watcher from looking for longer than movePause.
func TestAMoveIsOneHoweverLateItsSecondHalfIsRead(t *testing.T) {
	b := newBox(t, "")
	b.put("w/a", "")
	watcher, err := newWatcher(true)
	b.must(err)
	defer watcher.file.Close()
	var out strings.Builder
	w := &watching{watcher: watcher, h: b.h, name: ".", prefix: "/w", out: newLines(recorder{&out})}
	b.must(w.begin())
	b.must(os.Rename(b.path("w/a"), b.path("w/b")))
	one := make([]byte, syscall.SizeofInotifyEvent+16) // with its padded name
	n, err := w.file.Read(one)
	b.must(err)
	b.must(w.batch(notices(one[:n])))
	b.must(w.file.SetReadDeadline(time.Unix(1, 0))) // as it is by then
	b.must(os.RemoveAll(b.path("w")))               // which ends the watch
	b.must(w.follow(context.Background()))
	if !strings.Contains(out.String(), `"moved","path":"/w/b","from":"/w/a"`) {
		t.Error(out.String())
	}
}

func TestWatchNeverShowsTemporaryNames(t *testing.T) {
	b := newBox(t, "")
	w := b.watching("path", ".")
	b.ok("PUT", "files", "x", "path", "f")
	b.ok("PUT", "tree", archive(t, file("g", "1"), special('2', "l", "g"), special('1', "h", "g")), "path", ".")
	b.put("w/last", "")
	for _, e := range w.until("/w/last") {
		if strings.Contains(e["path"].(string), tempPrefix) || e["from"] != nil {
			t.Fatalf("%v", e)
		}
	}
}

func TestWatchOneLevelAndOneFile(t *testing.T) {
	b := newBox(t, "")
	b.must(os.Mkdir(b.path("w/sub"), 0o755))
	b.put("w/f", "")
	flat, one := b.watching("path", ".", "recursive", "0"), b.watching("path", "f")
	b.put("w/sub/hidden", "")
	b.put("w/f", "x")
	one.expect("modified /w/f")
	flat.expect("modified /w/f")
	b.must(os.Remove(b.path("w/f")))
	one.expect("removed /w/f")
	one.expect("end")
	b.put("w/last", "")
	for _, e := range flat.until("/w/last") {
		if strings.Contains(e["path"].(string), "sub/") {
			t.Errorf("%v", e)
		}
	}
}

func TestWatchEndsWithItsClient(t *testing.T) {
	b := newBox(t, "")
	w := b.watching("path", ".")
	_ = w.body.Close()
	for end := time.Now().Add(soon); inotifies(t) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("an inotify descriptor is still open")
		}
	}
}

func inotifies(t *testing.T) (n int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(target, "inotify") {
			n++
		}
	}
	return n
}

// The kernel drops events when the queue is full, and says so; what is new is watched.
func TestWatchTellsOfAnOverflow(t *testing.T) {
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	var queue int
	if _, err := fmt.Sscan(string(limit), &queue); err != nil || queue > 50000 {
		t.Skip("the kernel's queue holds too many events to fill it: ", string(limit))
	}
	b := newBox(t, "")
	for _, name := range []string{"w/0", "w/1"} {
		b.put(name, "")
	}
	w := &watching{h: b.h, name: ".", prefix: "/w", out: nil}
	watcher, err := newWatcher(true)
	b.must(err)
	defer watcher.file.Close()
	w.watcher = watcher
	b.must(w.begin())
	for i := 0; i <= queue; i++ { // nobody reads meanwhile
		b.must(os.Chmod(b.path(fmt.Sprintf("w/%d", i%2)), 0o600))
	}
	b.must(os.Mkdir(b.path("w/lost"), 0o755))
	var out strings.Builder
	w.out = newLines(recorder{&out})
	b.must(w.file.SetReadDeadline(time.Now().Add(soon)))
	buf := buffers.Get().(*buffer)
	for !strings.Contains(out.String(), `"overflow"`) {
		n, err := w.file.Read(buf[:])
		b.must(err)
		b.must(w.batch(notices(buf[:n]))) // which takes the deadline away
		b.must(w.out.buf.Flush())
	}
	b.put("w/lost/found", "")
	b.must(w.file.SetReadDeadline(time.Now().Add(soon)))
	n, err := w.file.Read(buf[:])
	b.must(err)
	b.must(w.batch(notices(buf[:n])))
	b.must(w.out.buf.Flush())
	if !strings.Contains(out.String(), `"created","path":"/w/lost/found"`) {
		t.Error("a folder made while events were lost is not watched")
	}
}
