package files

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

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

// bytesRead is how many bytes this process has read from anything so far.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("the kernel does not count what a process reads: ", err)
	}
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return n
}

func TestSparseFilesCostWhatTheyHold(t *testing.T) {
	b := newBox(t, "")
	const size = 20 << 30
	b.must(os.Mkdir(b.path("w/s"), 0o755))
	b.sparse("w/s/huge", size)
	b.put("w/s/small", "x")
	before := bytesRead(t)
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
	if read := bytesRead(t) - before; read > 64<<20 {
		t.Errorf("%d bytes were read", read)
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
	const size = 16 << 20
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
