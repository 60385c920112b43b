package files

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestPutKeepsModeAndOwner(t *testing.T) {
	isRoot(t)
	b := newBox(t, "app")
	b.ok("PUT", "files", "1", "path", "new/deep/f")
	for path, want := range map[string]string{"new": "0755 1234:2345", "new/deep": "0755 1234:2345", "new/deep/f": "0644 1234:2345"} {
		if got := mode(t, b.path("w/"+path)); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
	b.put("w/old", "1")
	b.must(os.Chown(b.path("w/old"), 7, 8))
	b.must(os.Chmod(b.path("w/old"), os.ModeSetuid|0o710))
	put := func(want string, args ...string) {
		t.Helper()
		b.ok("PUT", "files", "2", append(args, "path", "old")...)
		if got := mode(t, b.path("w/old")); got != want || b.get("w/old") != "2" {
			t.Errorf("%v: %s", args, got)
		}
	}
	put("4710 7:8")
	put("0600 7:8", "mode", "0600")
	put("0600 1234:2345", "user", "app")
	put("0600 0:0", "user", "root")
	put("0640 55:66", "user", "55:66", "mode", "640")
	b.refused(b.do("PUT", "files", "", "path", "x", "user", "nobody-here"), 400, "invalid_argument")
	b.refused(b.do("PUT", "files", "", "path", "x", "mode", "999"), 400, "invalid_argument")
	b.refused(b.do("PUT", "files", "", "path", "x", "sha256", "abc"), 400, "invalid_argument")
}

func TestPutThroughSymlinks(t *testing.T) {
	b := newBox(t, "")
	outside := filepath.Join(filepath.Dir(b.root), "outside")
	b.must(os.Mkdir(outside, 0o755))
	b.must(os.WriteFile(filepath.Join(outside, "f"), []byte("host"), 0o644))
	b.put("etc/f", "old")
	for name, target := range map[string]string{"to": "../etc/f", "new": "/etc/new", "leak": "/etc", "host": "../../outside", "loop": "loop"} {
		b.must(os.Symlink(target, b.path("w/"+name)))
	}
	b.ok("PUT", "files", "1", "path", "to")
	b.ok("PUT", "files", "2", "path", "new")
	b.ok("PUT", "files", "3", "path", "leak/passwd")
	if b.get("etc/f") != "1" || b.get("etc/new") != "2" || b.get("etc/passwd") != "3" {
		t.Error("written elsewhere")
	}
	if target, err := os.Readlink(b.path("w/to")); err != nil || target != "../etc/f" {
		t.Error("the symlink was replaced")
	}
	b.ok("PUT", "files", "inside", "path", "host/f") // "../../outside" from /w is /outside of the root
	data, err := os.ReadFile(filepath.Join(outside, "f"))
	b.must(err)
	if string(data) != "host" || b.get("outside/f") != "inside" {
		t.Errorf("outside the root: %q", data)
	}
	b.refused(b.do("PUT", "files", "", "path", "loop"), 409, "ELOOP")
}

func TestReadOnlyAndFullAndBound(t *testing.T) {
	isRoot(t)
	b := newBox(t, "")
	for _, dir := range []string{"ro", "small"} {
		b.must(os.Mkdir(b.path(dir), 0o755))
	}
	mount := func(dir string, flags uintptr, options string) {
		if err := syscall.Mount("t", b.path(dir), "tmpfs", flags, options); err != nil {
			t.Skip("cannot mount a tmpfs here: ", err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(b.path(dir), syscall.MNT_DETACH) })
	}
	mount("ro", syscall.MS_RDONLY, "")
	mount("small", 0, "size=1m")
	b.refused(b.do("PUT", "files", "x", "path", "/ro/f"), 403, "EROFS")
	b.refused(b.do("POST", "files/mkdir", "", "path", "/ro/d"), 403, "EROFS")
	b.refused(b.do("PUT", "files", string(noise(3<<20)), "path", "/small/f"), 507, "ENOSPC")
	b.refused(b.do("PUT", "tree", archive(t, file("f", string(noise(3<<20)))), "path", "/small"), 507, "ENOSPC")
	b.refused(b.do("POST", "files/move", "", "path", "/w", "to", "/small/w"), 409, "EXDEV")
	if left, err := os.ReadDir(b.path("small")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	b.put("w/source", "source")
	b.put("w/bound", "")
	b.must(syscall.Mount(b.path("w/source"), b.path("w/bound"), "", syscall.MS_BIND, ""))
	t.Cleanup(func() { _ = syscall.Unmount(b.path("w/bound"), syscall.MNT_DETACH) })
	b.ok("PUT", "files", "new", "path", "bound")
	if b.get("w/source") != "new" {
		t.Error("a file that is a mount point was not written")
	}
	b.refused(b.do("POST", "files/remove", "", "path", "bound"), 400, "EBUSY")
}

func TestBadBodiesChangeNothing(t *testing.T) {
	b := newBox(t, "")
	b.put("w/f", "old")
	b.refused(b.do("PUT", "files", "new", "path", "f", "sha256", sum([]byte("other"))), 400, "invalid_argument")
	conn, err := b.dial(nil, "", "")
	b.must(err)
	_, _ = io.WriteString(conn, "PUT /v1/files?path=f HTTP/1.1\r\nHost: x\r\nOrchard-Sandbox: sb-1\r\nContent-Length: 100\r\n\r\nonly this")
	b.must(conn.(interface{ CloseWrite() error }).CloseWrite())
	reply, _ := io.ReadAll(conn)
	_ = conn.Close()
	if !bytes.Contains(reply, []byte("400 Bad Request")) || b.get("w/f") != "old" {
		t.Errorf("%s, and the file is %q", reply, b.get("w/f"))
	}
	b.noTemps()
}

// A client that has not sent all of its body must still read why it is refused, and not
// only that the connection broke.
func TestRefusalsOfLargeBodiesAreHeard(t *testing.T) {
	b := newBox(t, "")
	for _, route := range []string{"PUT /v1/files?path=.", "PUT /v1/tree?path=/etc/passwd", "POST /v1/files/append?path=none/x"} {
		conn, err := b.dial(nil, "", "")
		b.must(err)
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nOrchard-Sandbox: sb-1\r\nContent-Length: %d\r\n\r\n", route, 20<<20)
		if _, err := conn.Write(make([]byte, 20<<20)); err != nil {
			t.Errorf("%s: %v", route, err)
		}
		reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || reply.StatusCode < 400 {
			t.Errorf("%s: %v, %v", route, reply, err)
		}
		_ = conn.Close()
	}
}

func (b *box) noTemps() {
	b.t.Helper()
	_ = filepath.WalkDir(b.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), tempPrefix) {
			b.t.Errorf("left behind: %s", path)
		}
		return nil
	})
}

func TestFiftyParallelWritesIntoANewFolder(t *testing.T) {
	b := newBox(t, "")
	var group sync.WaitGroup
	for round := 0; round < 4; round++ {
		for i := 0; i < 50; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				name := fmt.Sprintf("new%d/a/b/c/%d", round, i)
				if got := b.do("PUT", "files", name, "path", name); got.status != 200 {
					t.Errorf("%s: %s", name, got.body)
				} else if b.get("w/"+name) != name {
					t.Errorf("%s holds something else", name)
				}
			}()
		}
		group.Wait()
	}
}

func TestFoldersMadeAtTheSameTime(t *testing.T) {
	b := newBox(t, "")
	for round := 0; round < 300; round++ {
		name, start, results := fmt.Sprintf("/w/%d/b/c", round), make(chan struct{}), make(chan error, 8)
		for range [8]struct{}{} {
			go func() {
				<-start
				results <- b.h.makeAll(name, dirMode, owner{})
			}()
		}
		close(start)
		for range [8]struct{}{} {
			b.must(<-results)
		}
	}
}

func TestReadersSeeOldOrNew(t *testing.T) {
	b := newBox(t, "")
	big := [2]string{strings.Repeat("a", 300<<10), strings.Repeat("b", 200<<10)}
	b.put("w/f", big[0])
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; i < 60; i++ {
			b.ok("PUT", "files", big[i%2], "path", "f")
		}
	}()
	for reads := 0; ; reads++ {
		if got := b.ok("GET", "files", "", "path", "f").body; got != big[0] && got != big[1] {
			t.Fatal("a torn file")
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestAppend(t *testing.T) {
	b := newBox(t, "")
	b.ok("POST", "files/append", "ab", "path", "f")
	if got := b.ok("POST", "files/append", "cd", "path", "f", "offset", "2").fields(t); got["size"] != float64(4) {
		t.Errorf("%v", got)
	}
	b.refused(b.do("POST", "files/append", "cd", "path", "f", "offset", "2"), 409, "conflict")
	b.refused(b.do("POST", "files/append", "cd", "path", "f", "offset", "-2"), 400, "invalid_argument")
	big := string(noise(600 << 10))
	b.ok("POST", "files/append", big, "path", "f")
	if b.get("w/f") != "abcd"+big {
		t.Error("not what was appended")
	}
}
