package files

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

func TestAThousandSmallFiles(t *testing.T) {
	b := newBox(t, "")
	var entries []tarEntry
	for i := 0; i < 1000; i++ {
		entries = append(entries, file(fmt.Sprintf("d%d/f%d", i%20, i), fmt.Sprint(i)))
	}
	b.ok("PUT", "tree", archive(t, entries...), "path", "t")
	if got := b.ok("GET", "manifest", "", "path", "t").lines(t); len(got) != 1020 {
		t.Errorf("%d lines", len(got))
	}
	back := b.ok("GET", "tree", "", "path", "t").body
	if n := strings.Count(listed(t, back), "\n") + 1; n != 1020 {
		t.Errorf("%d entries come back", n)
	}
}
