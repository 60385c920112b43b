package files

import (
	"archive/tar"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
)

// pickOf is the body that asks for names.
func pickOf(names ...string) string {
	out, _ := json.Marshal(map[string]any{"paths": names})
	return string(out)
}

// listed says of every entry of an archive what a layer must keep.
func listed(t *testing.T, archive string) string {
	t.Helper()
	var out []string
	for r := tar.NewReader(strings.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return strings.Join(out, "\n")
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		note := h.PAXRecords["SCHILY.xattr.user.note"]
		out = append(out, fmt.Sprintf("%s %c %o %s %s%s", h.Name, h.Typeflag, h.Mode, h.Linkname, sum(data)[:4], note))
	}
}

func TestPickTakesWhatIsNamedAndNothingBelow(t *testing.T) {
	b := newBox(t, "")
	b.must(os.MkdirAll(b.path("w/d/sub"), 0o751))
	b.put("w/d/sub/a", "one")
	b.put("w/d/sub/left", "not asked for")
	b.put("w/d/\xff", "raw")
	b.must(os.Link(b.path("w/d/sub/a"), b.path("w/d/z")))
	b.must(os.Symlink("sub", b.path("w/d/link")))
	b.must(syscall.Mkfifo(b.path("w/d/fifo"), 0o600))
	for name, note := range map[string]string{"w/d/sub": "folder", "w/d/sub/a": "file"} {
		b.must(syscall.Setxattr(b.path(name), "user.note", []byte(note), 0))
	}
	body, _ := json.Marshal(map[string]any{
		"paths":     []string{"sub", "./sub/a", "z", "link", "fifo", "gone", "link/a"},
		"paths_b64": []string{base64.StdEncoding.EncodeToString([]byte("\xff"))}})
	got := b.ok("POST", "tree/pick", string(body), "path", "/w/d")
	one, raw, none := sum([]byte("one"))[:4], sum([]byte("raw"))[:4], sum(nil)[:4]
	want := strings.Join([]string{
		"sub/ 5 751  " + none + "folder", "sub/a 0 644  " + one + "file", "z 1 644 sub/a " + none,
		"link 2 777 sub " + none, "\xff 0 644  " + raw}, "\n")
	if entries := listed(t, got.body); entries != want {
		t.Errorf("got\n%s\nwant\n%s", entries, want)
	}
	if skipped := got.trailer.Get("Orchard-Skipped"); skipped != `["fifo","gone","link%2Fa"]` {
		t.Errorf("skipped %s", skipped)
	}
}

func TestPickKeepsAttributesOfSparseFiles(t *testing.T) {
	b := newBox(t, "")
	b.put("w/big", "")
	b.must(os.Truncate(b.path("w/big"), 64<<20))
	b.must(syscall.Setxattr(b.path("w/big"), "user.note", []byte("sparse"), 0))
	got := b.ok("POST", "tree/pick", pickOf("big"), "path", "/w")
	if len(got.body) > 1<<20 || !strings.HasSuffix(listed(t, got.body), "sparse") {
		t.Errorf("%d bytes: %s", len(got.body), listed(t, got.body))
	}
}

func TestPickRefusesWhatLeadsOut(t *testing.T) {
	b := newBox(t, "")
	for _, body := range []string{
		pickOf("../etc/passwd"), pickOf("/etc/passwd"), pickOf("a/../../etc"), pickOf("."), `{"paths_b64":["?"]}`, "[]",
	} {
		b.refused(b.do("POST", "tree/pick", body, "path", "/w"), 400, "invalid_argument")
	}
	b.refused(b.do("POST", "tree/pick", pickOf("a"), "path", "/nope"), 404, "ENOENT")
	b.refused(b.do("POST", "tree/pick", pickOf(strings.Repeat("a", pickLimit)), "path", "/w"), 400, "invalid_argument")
}

func TestPickTakesManyPathsInOneRequest(t *testing.T) {
	b := newBox(t, "")
	var names []string
	for i := 0; i < 3000; i++ {
		dir := fmt.Sprintf("d%02d", i%30)
		b.must(os.MkdirAll(b.path("w/"+dir), 0o755))
		names = append(names, fmt.Sprintf("%s/f%d", dir, i))
		b.put("w/"+names[i], names[i])
	}
	entries := strings.Split(listed(t, b.ok("POST", "tree/pick", pickOf(names...), "path", "/w").body), "\n")
	if len(entries) != len(names) {
		t.Fatalf("%d entries", len(entries))
	}
	for i, entry := range entries {
		if want := fmt.Sprintf("%s 0 644  %s", names[i], sum([]byte(names[i]))[:4]); entry != want {
			t.Fatalf("%q, want %q", entry, want)
		}
	}
}
