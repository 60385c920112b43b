package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"
)

// describe says of every file of a tree what an archive must keep.
func describe(t testing.TB, top string) string {
	t.Helper()
	var out []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(top, path)
		if err != nil || rel == "." {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		content := ""
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = sum(data)
		case info.Mode()&fs.ModeSymlink != 0:
			content, _ = os.Readlink(path)
		}
		if st.Nlink > 1 && !info.IsDir() {
			if inodes[st.Ino] == "" {
				inodes[st.Ino] = rel
			}
			content += " linked to " + inodes[st.Ino]
		}
		out = append(out, fmt.Sprintf("%s %s %d.%09d %s", rel, info.Mode(), st.Mtim.Sec, st.Mtim.Nsec, content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, "\n")
}

func TestTreeRoundTrips(t *testing.T) {
	b := newBox(t, "")
	b.zoo()
	b.put("w/zoo/big", string(noise(700<<10)))
	b.put("w/zoo/empty.txt", "")
	b.put("w/zoo/\xff\xfe", "raw")
	b.put("w/zoo/"+strings.Repeat("long ", 50), "long")
	b.must(os.MkdirAll(b.path("w/zoo/"+strings.Repeat("n/", 80)), 0o755))
	b.must(os.Link(b.path("w/zoo/a"), b.path("w/zoo/sub/linked")))
	b.must(os.Link(b.path("w/zoo/a"), b.path("w/zoo/zz")))
	b.must(os.Chmod(b.path("w/zoo/a-b"), os.ModeSetuid|0o751))
	at := time.Unix(1600000000, 123456789)
	for _, name := range []string{"a", "big", "empty", "sub/deep/y", "sub"} {
		b.must(os.Chtimes(b.path("w/zoo/"+name), at, at))
	}
	got := b.ok("GET", "tree", "", "path", "zoo")
	if skipped := got.trailer.Get("Orchard-Skipped"); skipped != `["fifo","sub%2Fsocket"]` || got.trailer.Get("Orchard-Skipped-Count") != "2" {
		t.Errorf("skipped %v", got.trailer)
	}
	put := b.ok("PUT", "tree", got.body, "path", "copy").fields(t)
	b.must(os.Remove(b.path("w/zoo/fifo")))
	b.must(os.Remove(b.path("w/zoo/sub/socket")))
	b.must(os.Chtimes(b.path("w/zoo/sub"), at, at))
	want := describe(t, b.path("w/zoo"))
	if copied := describe(t, b.path("w/copy")); copied != want {
		t.Errorf("want\n%s\ngot\n%s", want, copied)
	}
	if n := strings.Count(want, "\n") + 1; put["files"] != float64(n) {
		t.Errorf("%v, want %d files", put, n)
	}
	b.gnuTarReads(got.body, want)
}

// gnuTarReads has the archive read by a program that is not ours.
func (b *box) gnuTarReads(archive, want string) {
	b.t.Helper()
	dir := filepath.Join(b.t.TempDir(), "gnu")
	b.must(os.Mkdir(dir, 0o755))
	cmd := exec.Command("tar", "-xpf", "-", "-C", dir, "--no-same-owner", "--atime-preserve")
	cmd.Stdin = strings.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		b.t.Errorf("tar: %v\n%s", err, out)
	}
	if got := describe(b.t, dir); os.Geteuid() == 0 && got != want {
		b.t.Errorf("tar reads\n%s\nwant\n%s", got, want)
	}
}

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

func TestUnpackNeverLeaves(t *testing.T) {
	for name, entries := range map[string][]tarEntry{
		"dots":            {file("../escaped", "x")},
		"inner dots":      {file("a/../../escaped", "x")},
		"absolute":        {file("/escaped", "x")},
		"through a link":  {special(tar.TypeSymlink, "l", "/etc"), file("l/escaped", "x")},
		"up a link":       {special(tar.TypeSymlink, "l", ".."), file("l/escaped", "x")},
		"by two links":    {special(tar.TypeSymlink, "a", "b"), special(tar.TypeSymlink, "b", ".."), file("a/escaped", "x")},
		"folder by link":  {special(tar.TypeSymlink, "l", "/etc"), folder("l/escaped", 0o755)},
		"folder on link":  {special(tar.TypeSymlink, "l", "/etc"), folder("l", 0o777)},
		"hard link out":   {special(tar.TypeLink, "h", "../old")},
		"hard link abs":   {special(tar.TypeLink, "h", "/etc/passwd")},
		"hard link by it": {special(tar.TypeSymlink, "l", "/etc"), special(tar.TypeLink, "h", "l/passwd")},
		"link in it":      {special(tar.TypeSymlink, "l", "/etc"), special(tar.TypeSymlink, "l/escaped", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "")
			b.put("w/old", "old")
			before := describe(t, b.path("etc"))
			got := b.do("PUT", "tree", archive(t, append(entries, file("after", ""))...), "path", "t")
			b.refused(got, 409, "EXDEV")
			if describe(t, b.path("etc")) != before || b.get("w/old") != "old" {
				t.Error("something outside was touched")
			}
			for _, gone := range []string{"w/escaped", "escaped", "w/t/h", "w/t/after"} {
				if _, err := os.Lstat(b.path(gone)); err == nil {
					t.Errorf("%s was made", gone)
				}
			}
			b.noTemps()
		})
	}
}

func TestUnpackReplacesAndStaysInside(t *testing.T) {
	b := newBox(t, "")
	b.put("etc/victim", "old")
	b.must(os.MkdirAll(b.path("w/t/lib"), 0o2711))
	b.must(os.Symlink("lib", b.path("w/t/lib64")))
	b.must(os.Symlink("/etc/victim", b.path("w/t/f")))
	b.put("w/t/h2", "old")
	before := mode(t, b.path("w/t/lib"))
	got := b.ok("PUT", "tree", archive(t, folder("./", 0o700), file("f", "new"), folder("lib/", 0o755), folder("lib64/", 0o755),
		file("lib64/so", "1"), file("made/on/the/way", "2"), special(tar.TypeFifo, "fifo", ""), special(tar.TypeChar, "dev", ""),
		special(tar.TypeSymlink, "lib/l", "/etc/victim"), special(tar.TypeLink, "h2", "f"), special(tar.TypeLink, "h2", "f")), "path", "t").fields(t)
	if fmt.Sprint(got["skipped"]) != "[fifo dev]" {
		t.Errorf("%v", got)
	}
	if b.get("etc/victim") != "old" || b.get("w/t/f") != "new" || b.get("w/t/lib/so") != "1" || b.get("w/t/made/on/the/way") != "2" || b.get("w/t/h2") != "new" {
		t.Error("not where it belongs")
	}
	if after := mode(t, b.path("w/t/lib")); after != before {
		t.Errorf("a folder that was there changed from %s to %s", before, after)
	}
	b.noTemps()
	b.must(os.Mkdir(b.path("w/t/dir"), 0o755))
	b.refused(b.do("PUT", "tree", archive(t, file("dir", "")), "path", "t"), 409, "EISDIR")
	b.refused(b.do("PUT", "tree", archive(t, folder("f", 0o755)), "path", "t"), 409, "EEXIST")
	b.refused(b.do("PUT", "tree", "not a tar"+strings.Repeat("!", 2000), "path", "t"), 400, "invalid_argument")
	whole := archive(t, file("cut", string(noise(100<<10))))
	b.refused(b.do("PUT", "tree", whole[:50<<10], "path", "t"), 400, "invalid_argument")
	if _, err := os.Lstat(b.path("w/t/cut")); err == nil {
		t.Error("half a file was put in place")
	}
	b.noTemps()
}

func TestRestoreKeepsOwners(t *testing.T) {
	isRoot(t)
	b := newBox(t, "app")
	b.must(os.MkdirAll(b.path("w/t/d"), 0o700))
	entry := folder("d/", 0o1777)
	entry.Uid, entry.Gid = 11, 12
	f := file("d/f", "")
	f.Uid, f.Gid = 13, 14
	b.ok("PUT", "tree", archive(t, entry, f), "path", "t", "restore", "1")
	if d, f := mode(t, b.path("w/t/d")), mode(t, b.path("w/t/d/f")); d != "1777 11:12" || f != "0644 13:14" {
		t.Errorf("%s, %s", d, f)
	}
}

func TestAThousandSmallFiles(t *testing.T) {
	b := newBox(t, "")
	var entries []tarEntry
	for i := 0; i < 1000; i++ {
		entries = append(entries, file(fmt.Sprintf("d%d/f%d", i%20, i), fmt.Sprint(i)))
	}
	packed, start := archive(t, entries...), time.Now()
	b.ok("PUT", "tree", packed, "path", "t")
	up := time.Since(start)
	if got := b.ok("GET", "manifest", "", "path", "t").lines(t); len(got) != 1020 {
		t.Errorf("%d lines", len(got))
	}
	b.ok("GET", "tree", "", "path", "t")
	if all := time.Since(start); all > 6*time.Second {
		t.Errorf("up in %v, all in %v", up, all)
	}
}

// sparse makes a file of n bytes with a little data in the middle and at no end.
func (b *box) sparse(name string, n int64) {
	b.t.Helper()
	f, err := os.Create(b.path(name))
	b.must(err)
	defer f.Close()
	_, err = f.WriteAt([]byte("middle"), n/2)
	b.must(err)
	b.must(f.Truncate(n))
}

func TestSparseFilesCostWhatTheyHold(t *testing.T) {
	b := newBox(t, "")
	const size = 20 << 30
	b.must(os.Mkdir(b.path("w/s"), 0o755))
	b.sparse("w/s/huge", size)
	b.put("w/s/small", "x")
	start := time.Now()
	got := b.ok("GET", "tree", "", "path", "s")
	if len(got.body) > 1<<20 {
		t.Fatalf("the archive has %d bytes", len(got.body))
	}
	lines := b.ok("GET", "manifest", "", "path", "s").lines(t)
	if lines[0]["size"] != float64(size) || len(strings.TrimPrefix(lines[0]["sha256"].(string), "sparse:")) != 64 {
		t.Errorf("%v", lines)
	}
	if e := b.ok("GET", "files/stat", "", "path", "s/huge").fields(t); e["size"] != float64(size) || e["blocks"].(float64) > 4096 {
		t.Errorf("%v", e)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	r := b.request("GET", "files", nil, "path", "s/huge")
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", size/2-1, size/2+6))
	if part := b.send(r); part.body != "\x00middle\x00" {
		t.Errorf("%q", part.body)
	}
	b.sparseArchive()
}

// sparseArchive sends a smaller sparse file round, since every reader writes its zeros.
func (b *box) sparseArchive() {
	const size = 64 << 20
	b.must(os.Mkdir(b.path("w/m"), 0o755))
	b.sparse("w/m/f", size)
	b.must(os.Truncate(b.path("w/m/f"), size+12345))
	b.put("w/m/g", "after")
	got := b.ok("GET", "tree", "", "path", "m")
	if len(got.body) > 256<<10 {
		b.t.Errorf("the archive has %d bytes", len(got.body))
	}
	b.ok("PUT", "tree", got.body, "path", "m2")
	want := describe(b.t, b.path("w/m"))
	if copied := describe(b.t, b.path("w/m2")); copied != want {
		b.t.Errorf("want\n%s\ngot\n%s", want, copied)
	}
	var st syscall.Stat_t
	b.must(syscall.Stat(b.path("w/m2/f"), &st))
	if st.Blocks*512 > 2<<20 {
		b.t.Errorf("the copy takes %d bytes on disk", st.Blocks*512)
	}
	b.gnuTarReads(got.body, want)
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
	start := time.Now()
	for i := 0; i < 3000; i++ {
		b.put(fmt.Sprintf("w/zoo/sub/%d", i), "x")
	}
	gone := make(chan struct{})
	go func() { // changes during the walk are borne
		defer close(gone)
		for i := 0; i < 3000; i++ {
			_ = os.Remove(b.path(fmt.Sprintf("w/zoo/sub/%d", (i*7919)%3000)))
		}
	}()
	for i := 0; i < 5; i++ {
		b.ok("GET", "manifest", "", "path", "zoo").lines(t)
		b.ok("GET", "tree", "", "path", "zoo")
		b.ok("GET", "files/list", "", "path", "zoo", "recursive", "1").lines(t)
	}
	<-gone
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

// FuzzUnpack extracts archives made of dangerous names in any order: what is outside
// of the target never changes.
func FuzzUnpack(f *testing.F) {
	for seed := int64(0); seed < 60; seed++ {
		f.Add(seed)
	}
	b := newBox(f, "")
	b.must(os.MkdirAll(b.path("w/other"), 0o755))
	b.put("w/other/victim", "victim")
	f.Fuzz(func(t *testing.T, seed int64) {
		b.t = t
		b.must(os.RemoveAll(b.path("w/t")))
		before := describe(t, b.path("etc")) + describe(t, b.path("w"))
		b.must(os.Mkdir(b.path("w/t"), 0o755))
		got := b.do("PUT", "tree", hostile(rand.New(rand.NewSource(seed))), "path", "t")
		if got.status != 200 && got.status != 409 && got.status != 400 && got.status != 404 {
			t.Errorf("%d %s", got.status, got.body)
		}
		b.must(os.RemoveAll(b.path("w/t")))
		if after := describe(t, b.path("etc")) + describe(t, b.path("w")); after != before {
			t.Fatalf("before\n%s\nafter\n%s", before, after)
		}
	})
}

func hostile(rng *rand.Rand) string {
	words := []string{"a", "b", "c", "..", ".", "/", "etc", "other", "victim", "w", "passwd"}
	name := func() string {
		var parts []string
		for n := rng.Intn(4) + 1; n > 0; n-- {
			parts = append(parts, words[rng.Intn(len(words))])
		}
		return strings.Join(parts, "/")
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for n := rng.Intn(12) + 1; n > 0; n-- {
		content := ""
		header := &tar.Header{Name: name(), Mode: 0o755, Typeflag: []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeSymlink, tar.TypeLink}[rng.Intn(5)]}
		switch header.Typeflag {
		case tar.TypeReg:
			content = "hostile"
		case tar.TypeSymlink, tar.TypeLink:
			header.Linkname = name()
		}
		header.Size = int64(len(content))
		if w.WriteHeader(header) == nil {
			_, _ = io.WriteString(w, content)
		}
	}
	_ = w.Close()
	return out.String()
}
