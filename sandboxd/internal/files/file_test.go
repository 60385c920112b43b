package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// noise is n bytes that no compression and no zero test makes smaller.
func noise(n int) []byte {
	out := make([]byte, n)
	state := uint64(88172645463325252)
	for i := range out {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		out[i] = byte(state)
	}
	return out
}

func TestEverySizeRoundTrips(t *testing.T) {
	b := newBox(t, "")
	for _, n := range []int{0, 1, 511, 4096, wholeFile - 1, wholeFile, wholeFile + 1, 256 << 10, 256<<10 + 1, 5 << 20} {
		data := noise(n)
		put := b.ok("PUT", "files", string(data), "path", "f", "sha256", sum(data)).fields(t)
		if put["sha256"] != sum(data) || put["size"] != float64(n) || put["path"] != "/w/f" || put["mode"] != float64(0o644) {
			t.Errorf("%d bytes: %v", n, put)
		}
		got := b.ok("GET", "files", "", "path", "/w/f")
		if got.body != string(data) || got.header.Get("Content-Length") != strconv.Itoa(n) || got.header.Get("Orchard-Mode") != "0644" {
			t.Errorf("%d bytes come back as %d, %v", n, len(got.body), got.header)
		}
		at, err := strconv.ParseFloat(got.header.Get("Orchard-Mtime"), 64)
		if err != nil || time.Since(time.UnixMicro(int64(at*1e6))).Abs() > time.Minute {
			t.Errorf("mtime %q", got.header.Get("Orchard-Mtime"))
		}
	}
}

func TestRange(t *testing.T) {
	b := newBox(t, "")
	for _, n := range []int{1000, 300 << 10} {
		data := string(noise(n))
		b.put("w/f", data)
		for header, want := range map[string]string{"bytes=0-9": data[:10], "bytes=990-": data[990:], "bytes=-5": data[n-5:],
			"bytes=5-5": data[5:6], "bytes=990-99999999": data[990:], "bytes=-99999999": data,
			"bytes=9-5": data, "lines=0-4": data, "bytes=0-4,9-12": data, "bytes=x": data, "bytes=--5": data} {
			r := b.request("GET", "files", nil, "path", "f")
			r.Header.Set("Range", header)
			got := b.send(r)
			if got.body != want {
				t.Errorf("%s of %d: %d bytes", header, n, len(got.body))
			}
			partial := strings.Contains("bytes=0-9 bytes=990- bytes=-5 bytes=5-5 bytes=990-99999999 bytes=-99999999", header)
			if partial != (got.status == http.StatusPartialContent) {
				t.Errorf("%s: %d", header, got.status)
			}
		}
		r := b.request("GET", "files", nil, "path", "f")
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", n))
		b.refused(b.send(r), 416, "invalid_range")
		r.Header.Set("Range", "bytes=10-19")
		if got := b.send(r); got.header.Get("Content-Range") != fmt.Sprintf("bytes 10-19/%d", n) || got.body != data[10:20] {
			t.Errorf("%v", got.header)
		}
	}
	b.put("w/empty", "")
	r := b.request("GET", "files", nil, "path", "empty")
	r.Header.Set("Range", "bytes=0-")
	b.refused(b.send(r), 416, "invalid_range")
}

func TestFilesOfProcHaveTheirRealLength(t *testing.T) {
	b := newBox(t, "")
	b.socket += "2"
	b.serve(Deps{Root: "/", Workdir: "/"})
	if got := b.ok("GET", "files", "", "path", "/proc/self/status"); !strings.Contains(got.body, "VmRSS") {
		t.Errorf("%q", got.body)
	}
	if got := b.ok("GET", "files", "", "path", "/proc/kallsyms"); strings.Count(got.body, "\n") < 10000 {
		t.Errorf("%d bytes", len(got.body))
	}
	if got := b.ok("GET", "files", "", "path", "/sys/kernel/mm/transparent_hugepage/enabled"); !strings.Contains(got.body, "[") {
		t.Errorf("%q", got.body)
	}
	b.refused(b.do("GET", "files", "", "path", "/proc/self/exe"), 409, "ELOOP")
	b.refused(b.do("GET", "files", "", "path", "/dev/zero"), 400, "EINVAL")
}

func TestNames(t *testing.T) {
	b := newBox(t, "")
	names := []string{"é.txt", "日本 語.txt", `a"b`, "new\nline", "-rf", " leading", "%2e%2e", "%2F", ".env", "a+b&c=d;e#f?",
		strings.Repeat("n", 255), "\xff\xfe raw", "'; touch pwned; '", `back\slash`, "tab\t", "$HOME"}
	for _, name := range names {
		put := b.ok("PUT", "files", name, "path", "d/"+name).fields(t)
		if got := b.get("w/d/" + name); got != name {
			t.Errorf("%q holds %q", name, got)
		}
		if got := b.ok("GET", "files", "", "path", "d/"+name); got.body != name {
			t.Errorf("%q is read as %q", name, got.body)
		}
		if decoded(t, put, "path") != "/w/d/"+name {
			t.Errorf("%q is called %v", name, put)
		}
	}
	listed := map[string]bool{}
	for _, e := range b.ok("GET", "files/list", "", "path", "d").lines(t) {
		listed[decoded(t, e, "name")] = decoded(t, e, "path") == "/w/d/"+decoded(t, e, "name")
	}
	for _, name := range names {
		if !listed[name] {
			t.Errorf("%q is not listed", name)
		}
	}
	if len(listed) != len(names) {
		t.Errorf("%d listed, %d written", len(listed), len(names))
	}
	b.refused(b.do("PUT", "files", "", "path", strings.Repeat("n", 256)), 400, "ENAMETOOLONG")
	b.refused(b.do("PUT", "files", "", "path", "a\x00b"), 400, "invalid_argument")
	b.refused(b.do("PUT", "files", ""), 400, "invalid_argument")
}

// decoded is a name that stands plain or in base64.
func decoded(t testing.TB, fields map[string]any, key string) string {
	t.Helper()
	if b64, ok := fields[key+"_b64"].(string); ok {
		if _, both := fields[key].(string); both {
			t.Errorf("both %s and %s_b64", key, key)
		}
		raw, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	plain, _ := fields[key].(string)
	return plain
}

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

func TestTypedErrors(t *testing.T) {
	b := newBox(t, "")
	b.must(os.Mkdir(b.path("w/d"), 0o755))
	b.put("w/f", "x")
	b.must(syscall.Mkfifo(b.path("w/fifo"), 0o644))
	for _, c := range []struct {
		method, route string
		args          []string
		status        int
		errno         string
	}{
		{"GET", "files", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "files", []string{"path", "d"}, 409, "EISDIR"},
		{"GET", "files", []string{"path", "f/x"}, 409, "ENOTDIR"},
		{"GET", "files", []string{"path", "fifo"}, 400, "EINVAL"},
		{"PUT", "files", []string{"path", "d"}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "d/"}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "new/"}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "."}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "fifo"}, 400, "EINVAL"},
		{"PUT", "files", []string{"path", "f/x"}, 409, "ENOTDIR"},
		{"PUT", "files", []string{"path", "no/x", "parents", "0"}, 404, "ENOENT"},
		{"POST", "files/append", []string{"path", "fifo"}, 400, "EINVAL"},
		{"POST", "files/append", []string{"path", "d"}, 409, "EISDIR"},
		{"GET", "files/list", []string{"path", "f"}, 409, "ENOTDIR"},
		{"GET", "files/list", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "manifest", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "tree", []string{"path", "f"}, 409, "ENOTDIR"},
		{"PUT", "tree", []string{"path", "f"}, 409, "ENOTDIR"},
		{"GET", "files/stat", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "files/watch", []string{"path", "none"}, 404, "ENOENT"},
	} {
		b.refused(b.do(c.method, c.route, "", c.args...), c.status, c.errno)
	}
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

func TestAbortsLeaveNothing(t *testing.T) {
	b := newBox(t, "")
	b.put("w/big", string(noise(2<<20)))
	for i := 0; i < 50; i++ {
		b.put(fmt.Sprintf("w/small%d", i), "x")
	}
	tree := archive(t, file("up/1", "1"), file("up/2", string(noise(1<<20))))
	b.ok("GET", "files", "", "path", "big")
	b.client.CloseIdleConnections()
	goroutines, descriptors := 0, 0
	for i := 0; i < 220; i++ {
		if i == 20 { // by now everything that is made once is made
			time.Sleep(50 * time.Millisecond)
			goroutines, descriptors = runtime.NumGoroutine(), openFiles(t)
		}
		b.abort(i, tree)
	}
	settled(t, goroutines, descriptors)
	b.noTemps()
	count := 0
	b.h.temps.Range(func(any, any) bool { count++; return true })
	if count != 0 || len(b.h.disk) != 0 || len(b.h.hashers) != 0 {
		t.Errorf("%d temporary files, %d slots are still held", count, len(b.h.disk))
	}
	b.ok("GET", "manifest", "", "path", ".")
}

// abort begins a request of some kind and breaks it off after up to 20 ms.
func (b *box) abort(i int, tree string) {
	kinds := []string{"PUT /v1/files?path=d/x", "GET /v1/files?path=big", "PUT /v1/tree?path=t", "GET /v1/tree?path=.",
		"GET /v1/manifest?path=.", "GET /v1/files/watch?path=.", "POST /v1/files/append?path=a", "GET /v1/files/list?path=."}
	which := kinds[i%len(kinds)]
	conn, err := b.dial(nil, "", "")
	b.must(err)
	defer conn.Close()
	length := 0
	if strings.HasPrefix(which, "P") {
		length = 10 << 20
	}
	fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nOrchard-Sandbox: sb-1\r\nContent-Length: %d\r\n\r\n", which, length)
	if length > 0 {
		_, _ = io.WriteString(conn, tree[:len(tree)-1024])
	}
	time.Sleep(time.Duration(i%20) * time.Millisecond)
}
