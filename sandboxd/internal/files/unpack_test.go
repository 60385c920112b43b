package files

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strings"
	"testing"
)

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
		if got.status >= 500 {
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
