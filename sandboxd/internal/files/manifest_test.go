package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"syscall"
	"testing"
)

func TestExclude(t *testing.T) {
	b := newBox(t, "")
	b.zoo()
	names := func(args ...string) string {
		var out []string
		for _, e := range b.ok("GET", "manifest", "", append(args, "path", "zoo")...).lines(t) {
			out = append(out, e["path"].(string))
		}
		return strings.Join(out, " ")
	}
	all := names()
	for want, patterns := range map[string][]string{
		strings.Replace(all, " a.pyc", "", 1):                                            {"exclude", "*.pyc"},
		strings.Replace(all, " sub/deep sub/deep/y", "", 1):                              {"exclude", "deep"},
		strings.Replace(all, " sub/deep/y", "", 1):                                       {"exclude", "/sub/deep/y"},
		strings.Replace(all, " sub/x", "", 1):                                            {"exclude", "sub/x"},
		strings.Replace(strings.Replace(all, " up", "", 1), ".hidden a a-b", "a a-b", 1): {"exclude", "up", "exclude", ".h?dden"},
		all: {"exclude", "x/y", "exclude", "/deep", "exclude", "su"},
	} {
		if got := names(patterns...); got != want {
			t.Errorf("%v: %s\nwant %s", patterns, got, want)
		}
	}
	got := b.ok("GET", "tree", "", "path", "zoo", "exclude", "[a-z]*", "exclude", ".hidden/")
	if _, err := tar.NewReader(strings.NewReader(got.body)).Next(); !errors.Is(err, io.EOF) {
		t.Errorf("not empty: %v", err)
	}
	b.refused(b.do("GET", "tree", "", "path", "zoo", "exclude", "[a"), 400, "invalid_argument")
}

func TestManifest(t *testing.T) {
	b := newBox(t, "")
	b.zoo()
	b.put("w/zoo/big", string(noise(3<<20)))
	b.put("w/zoo/\xff", "raw")
	lines := b.ok("GET", "manifest", "", "path", "zoo").lines(t)
	var paths []string
	for _, e := range lines {
		path := decoded(t, e, "path")
		paths = append(paths, path)
		switch e["type"] {
		case "file":
			if e["sha256"] != sum([]byte(b.get("w/zoo/"+path))) {
				t.Errorf("%v", e)
			}
		case "symlink":
			if target, _ := os.Readlink(b.path("w/zoo/" + path)); e["target"] != target || e["sha256"] != nil {
				t.Errorf("%v", e)
			}
		case "other":
			if path != "fifo" && path != "sub/socket" {
				t.Errorf("%v", e)
			}
		}
	}
	if !sort.StringsAreSorted(paths) || len(paths) != 18 {
		t.Errorf("%q", paths)
	}
	for i := 0; i < 1000; i++ {
		b.put(fmt.Sprintf("w/zoo/sub/%d", i), "x")
	}
	gone := make(chan struct{})
	go func() { // changes during the walk are borne
		defer close(gone)
		for i := 0; i < 1000; i++ {
			_ = os.Remove(b.path(fmt.Sprintf("w/zoo/sub/%d", (i*7919)%1000)))
		}
	}()
	for i := 0; i < 3; i++ {
		b.ok("GET", "manifest", "", "path", "zoo").lines(t)
		b.ok("GET", "tree", "", "path", "zoo")
		b.ok("GET", "files/list", "", "path", "zoo", "recursive", "1").lines(t)
	}
	<-gone
}

// A tree that holds /proc has no end, and nothing of anybody's in there.
func TestWalksStayOutOfProc(t *testing.T) {
	isRoot(t)
	b := newBox(t, "")
	b.must(os.Mkdir(b.path("proc"), 0o755))
	if err := syscall.Mount("proc", b.path("proc"), "proc", 0, ""); err != nil {
		t.Skip("cannot mount proc here: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(b.path("proc"), syscall.MNT_DETACH) })
	for _, route := range []string{"manifest", "files/list"} {
		var below int
		for _, e := range b.ok("GET", route, "", "path", "/", "recursive", "1").lines(t) {
			path := strings.TrimPrefix(e["path"].(string), "/")
			if want := map[bool]any{true: "EXDEV"}[path == "proc"]; e["error"] != want {
				t.Errorf("%s: %v", route, e)
			}
			if strings.HasPrefix(path, "proc/") {
				below++
			}
		}
		if below > 0 {
			t.Errorf("%s went %d deep into proc", route, below)
		}
	}
	if got := b.ok("GET", "tree", "", "path", "/"); got.trailer.Get("Orchard-Skipped") != `["proc"]` {
		t.Errorf("%v", got.trailer)
	}
	if got := b.ok("GET", "files/list", "", "path", "/proc/sys/fs", "recursive", "1").lines(t); len(got) < 20 {
		t.Errorf("only %d below /proc when asked for", len(got))
	}
	w := b.watching("path", "/")
	b.put("w/x", "")
	w.expect("created /w/x")
}
