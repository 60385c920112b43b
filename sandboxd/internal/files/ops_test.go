package files

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestStat(t *testing.T) {
	b := newBox(t, "")
	b.put("w/f", "12345")
	at := time.Date(2020, 1, 2, 3, 4, 5, 678901234, time.UTC)
	b.must(os.Chtimes(b.path("w/f"), at, at))
	b.must(os.Chmod(b.path("w/f"), os.ModeSetgid|0o640))
	b.must(os.Symlink("f", b.path("w/l")))
	got := b.ok("GET", "files/stat", "", "path", "l")
	f := got.fields(t)
	if f["type"] != "file" || f["size"] != float64(5) || f["mode"] != float64(0o2640) || f["target"] != nil || f["path"] != "/w/l" || f["name"] != "l" {
		t.Errorf("%v", f)
	}
	if !strings.Contains(got.body, `"mtime":1577934245.678901234`) {
		t.Errorf("%s", got.body)
	}
	f = b.ok("GET", "files/stat", "", "path", "/w/l", "follow", "0").fields(t)
	if f["type"] != "symlink" || f["target"] != "f" {
		t.Errorf("%v", f)
	}
	for path, name := range map[string]string{"/": "/", ".": ".", "/w/": "w"} {
		if f := b.ok("GET", "files/stat", "", "path", path).fields(t); f["type"] != "dir" || f["name"] != name {
			t.Errorf("%s: %v", path, f)
		}
	}
	if os.Geteuid() == 0 {
		b.must(os.Chown(b.path("w/f"), 1234, 2345))
		if f := b.ok("GET", "files/stat", "", "path", "f").fields(t); f["user"] != "app" || f["group"] != "apps" || f["uid"] != float64(1234) {
			t.Errorf("%v", f)
		}
	}
	b.refused(b.do("GET", "files/stat", "", "path", "f", "follow", "maybe"), 400, "invalid_argument")
}

// zoo makes one of each kind of file, links that lead nowhere and a loop.
func (b *box) zoo() {
	b.must(os.MkdirAll(b.path("w/zoo/sub/deep"), 0o755))
	b.must(os.Mkdir(b.path("w/zoo/empty"), 0o750))
	for name, target := range map[string]string{"broken": "nowhere", "loop": "loop", "self": ".", "up": "..", "out": "/etc/passwd"} {
		b.must(os.Symlink(target, b.path("w/zoo/"+name)))
	}
	b.must(syscall.Mkfifo(b.path("w/zoo/fifo"), 0o644))
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	b.must(err)
	defer syscall.Close(fd)
	dir, err := os.Open(b.path("w/zoo/sub"))
	b.must(err)
	defer dir.Close()
	b.must(syscall.Bind(fd, &syscall.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/socket", dir.Fd())}))
	for name, content := range map[string]string{".hidden": "h", "a": "1", "a-b": "2", "sub/x": "3", "sub/deep/y": "4", "a.pyc": "5"} {
		b.put("w/zoo/"+name, content)
	}
}

func TestList(t *testing.T) {
	b := newBox(t, "")
	b.zoo()
	var flat, deep []string
	for _, e := range b.ok("GET", "files/list", "", "path", "zoo").lines(t) {
		flat = append(flat, fmt.Sprintf("%v:%v", e["name"], e["type"]))
	}
	want := ".hidden:file a:file a-b:file a.pyc:file broken:symlink empty:dir fifo:fifo loop:symlink out:symlink self:symlink sub:dir up:symlink"
	if got := strings.Join(flat, " "); got != want {
		t.Errorf("flat: %s", got)
	}
	for _, e := range b.ok("GET", "files/list", "", "path", "/w/zoo/", "recursive", "1").lines(t) {
		deep = append(deep, strings.TrimPrefix(e["path"].(string), "/w/zoo/"))
	}
	want = ".hidden a a-b a.pyc broken empty fifo loop out self sub sub/deep sub/deep/y sub/socket sub/x up"
	if got := strings.Join(deep, " "); got != want {
		t.Errorf("deep: %s", got)
	}
	if got := b.ok("GET", "files/list", "", "path", "zoo/self").lines(t); len(got) != len(flat) {
		t.Errorf("through a symlink: %v", got)
	}
	some := b.ok("GET", "files/list", "", "path", "zoo", "limit", "3")
	if len(some.lines(t)) != 3 || !strings.Contains(some.body, `"truncated":true`) {
		t.Errorf("limited: %s", some.body)
	}
	if exact := b.ok("GET", "files/list", "", "path", "zoo", "limit", "12"); strings.Contains(exact.body, "truncated") {
		t.Errorf("cut where nothing was left: %s", exact.body)
	}
	b.refused(b.do("GET", "files/list", "", "path", "zoo", "limit", "0"), 400, "invalid_argument")
}

func TestMkdir(t *testing.T) {
	b := newBox(t, "")
	if e := b.ok("POST", "files/mkdir", "", "path", "a/b/c", "mode", "0700").fields(t); e["type"] != "dir" || e["mode"] != float64(0o700) {
		t.Errorf("%v", e)
	}
	b.ok("POST", "files/mkdir", "", "path", "a/b/c")
	b.ok("POST", "files/mkdir", "", "path", "x/../y")
	b.ok("POST", "files/mkdir", "", "path", "one", "parents", "0")
	b.must(os.Symlink("/etc/new", b.path("w/l")))
	b.ok("POST", "files/mkdir", "", "path", "l/deep")
	for path, want := range map[string]string{"w/a": "0755", "w/a/b/c": "0700", "w/one": "0755", "w/x": "0755", "w/y": "0755", "etc/new/deep": "0755"} {
		if got := mode(t, b.path(path)); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
	b.put("w/f", "")
	b.refused(b.do("POST", "files/mkdir", "", "path", "one", "parents", "0"), 409, "EEXIST")
	b.refused(b.do("POST", "files/mkdir", "", "path", "no/x", "parents", "0"), 404, "ENOENT")
	b.refused(b.do("POST", "files/mkdir", "", "path", "f"), 409, "ENOTDIR")
	b.refused(b.do("POST", "files/mkdir", "", "path", "f/x"), 409, "ENOTDIR")
}

func TestMove(t *testing.T) {
	b := newBox(t, "")
	b.put("w/a", "1")
	b.put("w/b", "2")
	b.ok("POST", "files/move", "", "path", "a", "to", "b")
	if b.get("w/b") != "1" {
		t.Error("not replaced")
	}
	b.must(os.MkdirAll(b.path("w/full/x"), 0o755))
	b.must(os.Mkdir(b.path("w/dir"), 0o755))
	b.must(os.Symlink("b", b.path("w/l")))
	b.ok("POST", "files/move", "", "path", "l", "to", "l2")
	if target, err := os.Readlink(b.path("w/l2")); err != nil || target != "b" {
		t.Error("the symlink itself was not moved")
	}
	b.refused(b.do("POST", "files/move", "", "path", "none", "to", "x"), 404, "ENOENT")
	b.refused(b.do("POST", "files/move", "", "path", "b", "to", "no/x"), 404, "ENOENT")
	b.refused(b.do("POST", "files/move", "", "path", "b", "to", "dir"), 409, "EISDIR")
	b.refused(b.do("POST", "files/move", "", "path", "dir", "to", "full"), 409, "ENOTEMPTY")
	b.refused(b.do("POST", "files/move", "", "path", "dir", "to", "dir/inner"), 400, "EINVAL")
	b.refused(b.do("POST", "files/move", "", "path", "b/", "to", "x"), 409, "ENOTDIR")
	b.refused(b.do("POST", "files/move", "", "path", "b"), 400, "invalid_argument")
	b.refused(b.do("POST", "files/move", "", "path", "/", "to", "x"), 400, "EBUSY")
}

func TestRemove(t *testing.T) {
	b := newBox(t, "")
	b.zoo()
	b.put("etc/keep", "kept")
	b.must(os.Symlink("/etc", b.path("w/zoo/sub/etc")))
	b.refused(b.do("POST", "files/remove", "", "path", "zoo"), 409, "ENOTEMPTY")
	b.refused(b.do("POST", "files/remove", "", "path", "none"), 404, "ENOENT")
	b.refused(b.do("POST", "files/remove", "", "path", "/", "recursive", "1"), 400, "EBUSY")
	b.refused(b.do("POST", "files/remove", "", "path", "zoo/a/"), 409, "ENOTDIR")
	if got := b.ok("POST", "files/remove", "", "path", "none", "missing_ok", "1").fields(t); got["removed"] != false {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"zoo/a", "zoo/broken", "zoo/fifo", "zoo/self", "zoo/empty"} {
		b.ok("POST", "files/remove", "", "path", name)
	}
	b.ok("POST", "files/remove", "", "path", "zoo", "recursive", "1")
	if _, err := os.Lstat(b.path("w/zoo")); !os.IsNotExist(err) || b.get("etc/keep") != "kept" {
		t.Errorf("%v", err)
	}
}

// A tree deeper than any path can say, such as a command makes in a loop.
func TestRemoveAndWalkAnyDepth(t *testing.T) {
	b := newBox(t, "")
	b.must(os.Mkdir(b.path("w/deep"), 0o755))
	fd, err := syscall.Open(b.path("w/deep"), syscall.O_RDONLY, 0)
	b.must(err)
	for i := 0; i < 1200; i++ {
		b.must(syscall.Mkdirat(fd, "dddd", 0o755))
		next, err := syscall.Openat(fd, "dddd", syscall.O_RDONLY|syscall.O_NOFOLLOW, 0)
		b.must(err)
		b.must(syscall.Close(fd))
		fd = next
	}
	b.must(syscall.Close(fd))
	b.ok("GET", "files/list", "", "path", ".")
	before := openFiles(t)
	fewDescriptors(t, before+200)
	if got := b.do("GET", "files/list", "", "path", "deep", "recursive", "1"); !strings.Contains(got.body, "ENAMETOOLONG") {
		t.Errorf("neither listed nor refused: %.300s", got.body)
	}
	b.ok("POST", "files/remove", "", "path", "deep", "recursive", "1")
	if after := openFiles(t); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	if left, err := os.ReadDir(b.path("w")); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// fewDescriptors lowers the limit of open files while a test lasts.
func fewDescriptors(t *testing.T, n int) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(n), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
}

func TestChmodAndSymlink(t *testing.T) {
	b := newBox(t, "")
	b.put("w/f", "")
	b.ok("POST", "files/symlink", "", "path", "l", "target", "f")
	b.ok("POST", "files/chmod", "", "path", "l", "mode", "4711")
	if got := mode(t, b.path("w/f")); !strings.HasPrefix(got, "4711") {
		t.Errorf("%s", got)
	}
	e := b.ok("POST", "files/symlink", "", "path", "odd", "target", "no where\xff").fields(t)
	if decoded(t, e, "target") != "no where\xff" || e["type"] != "symlink" {
		t.Errorf("%v", e)
	}
	b.must(syscall.Mkfifo(b.path("w/fifo"), 0o644))
	b.ok("POST", "files/chmod", "", "path", "fifo", "mode", "600")
	b.refused(b.do("POST", "files/symlink", "", "path", "f", "target", "x"), 409, "EEXIST")
	b.refused(b.do("POST", "files/symlink", "", "path", "x", "target", ""), 400, "invalid_argument")
	b.refused(b.do("POST", "files/chmod", "", "path", "odd", "mode", "600"), 404, "ENOENT")
	b.refused(b.do("POST", "files/chmod", "", "path", "f"), 400, "invalid_argument")
}

func TestOwnersOfNewThings(t *testing.T) {
	isRoot(t)
	b := newBox(t, "app")
	b.ok("POST", "files/mkdir", "", "path", "d/e")
	b.ok("POST", "files/symlink", "", "path", "l", "target", "d")
	b.ok("POST", "files/append", "x", "path", "a")
	b.ok("PUT", "tree", archive(t, file("x/y", "1")), "path", "t")
	for _, name := range []string{"d", "d/e", "l", "a", "t", "t/x", "t/x/y"} {
		if got := mode(t, b.path("w/"+name)); !strings.HasSuffix(got, " 1234:2345") {
			t.Errorf("%s: %s", name, got)
		}
	}
	b.must(os.Mkdir(b.path("w/shared"), 0o755))
	b.must(os.Chown(b.path("w/shared"), 0, 50))
	b.must(os.Chmod(b.path("w/shared"), os.ModeSetgid|0o775))
	b.ok("PUT", "files", "", "path", "shared/d/f")
	if d, f := mode(t, b.path("w/shared/d")), mode(t, b.path("w/shared/d/f")); d != "2755 1234:50" || f != "0644 1234:50" {
		t.Errorf("in a set-gid folder: %s, %s", d, f)
	}
	b.ok("POST", "files/chmod", "", "path", "a", "user", "0:0")
	b.ok("POST", "files/mkdir", "", "path", "r", "user", "77")
	if a, r := mode(t, b.path("w/a")), mode(t, b.path("w/r")); a != "0644 0:0" || r != "0755 77:0" {
		t.Errorf("%s, %s", a, r)
	}
}

func TestWithoutRights(t *testing.T) { asNobody(t, "^TestNobody") }

func TestNobodyIsRefused(t *testing.T) {
	onlyNobody(t)
	b := newBox(t, "root")
	b.put("w/secret", "")
	b.must(os.Mkdir(b.path("w/locked"), 0o755))
	b.put("w/locked/f", "")
	b.must(os.Chmod(b.path("w/secret"), 0))
	b.must(os.Chmod(b.path("w/locked"), 0))
	defer func() { _ = os.Chmod(b.path("w/locked"), 0o755) }()
	b.refused(b.do("GET", "files", "", "path", "secret"), 403, "EACCES")
	b.refused(b.do("GET", "files", "", "path", "locked/f"), 403, "EACCES")
	b.refused(b.do("PUT", "files", "", "path", "locked/f"), 403, "EACCES")
	b.refused(b.do("GET", "files/list", "", "path", "locked"), 403, "EACCES")
	b.refused(b.do("PUT", "files", "", "path", "x", "user", "root"), 403, "EPERM")
	b.noTemps()
	b.ok("PUT", "files", "ours", "path", "x") // the configured user is root, but we are not
	if got := mode(t, b.path("w/x")); got != fmt.Sprintf("0644 %d:%d", os.Getuid(), os.Getgid()) {
		t.Errorf("%s", got)
	}
	for _, e := range b.ok("GET", "manifest", "", "path", ".").lines(t) {
		want := map[any]any{"secret": "EACCES", "locked": "EACCES", "x": nil}[e["path"]]
		if e["error"] != want {
			t.Errorf("%v", e)
		}
	}
	if got := b.ok("GET", "tree", "", "path", "."); got.trailer.Get("Orchard-Skipped") != `["locked","secret"]` {
		t.Errorf("%v", got.trailer)
	}
	b.ok("POST", "files/chmod", "", "path", "secret", "mode", "600") // a file that cannot be opened
	if got := mode(t, filepath.Join(b.root, "w/secret")); !strings.HasPrefix(got, "0600") {
		t.Errorf("%s", got)
	}
	b.ok("PUT", "tree", archive(t, folder("ro/", 0o500), file("ro/f", "1")), "path", "t")
	if got := mode(t, b.path("w/t/ro")); !strings.HasPrefix(got, "0500") || b.get("w/t/ro/f") != "1" {
		t.Errorf("%s", got)
	}
	b.must(os.Chmod(b.path("w/t/ro"), 0o700))
}
