package files

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// wholeFile is the size up to which a file is read before the answer begins: files of
// /proc and /sys say a wrong size, and a small file is then never torn by a writer.
const wholeFile = 64 << 10

func (h *Handler) read(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r)
	if err != nil {
		return err
	}
	var f *os.File
	var st syscall.Stat_t
	err = h.disk.run(func() (err error) { f, st, err = h.openFile(q.name()); return err })
	if err != nil {
		return wire.FileError(q.name(), err)
	}
	defer f.Close()
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "bytes")
	header.Set("Orchard-Mode", fmt.Sprintf("%04o", st.Mode&0o7777))
	header.Set("Orchard-Mtime", mtime(&st).String())
	if st.Size <= wholeFile {
		return wire.FileError(q.name(), h.readSmall(w, r, f))
	}
	span, err := parseRange(r.Header.Get("Range"), st.Size)
	if err != nil {
		header.Set("Content-Range", fmt.Sprintf("bytes */%d", st.Size))
		return err
	}
	span.begin(w, st.Size)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err = h.send(w, f, span.first, span.length)
	return wire.FileError(q.name(), err)
}

// openFile opens a regular file. It looks before it opens, since opening a device acts
// on it, and once more after, since the name may have changed hands.
func (h *Handler) openFile(path string) (*os.File, syscall.Stat_t, error) {
	fd, err := h.root.Open(path, rootfs.OPath)
	if err != nil {
		return nil, syscall.Stat_t{}, err
	}
	st, err := rootfs.Fstat(fd)
	_ = syscall.Close(fd)
	if err == nil && kind(&st) != "file" {
		err = notRegular(path, kind(&st))
	}
	if err != nil {
		return nil, st, err
	}
	fd, err = h.root.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY)
	if err != nil {
		return nil, st, err
	}
	return regular(path, fd)
}

// readSmall answers with a file that says it is small. If it is not, as many of /proc
// are not, it is streamed to its end without a length.
func (h *Handler) readSmall(w http.ResponseWriter, r *http.Request, f *os.File) error {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	got, err := 0, error(nil)
	_ = h.disk.run(func() error { got, err = fill(f, buf[:]); return nil })
	if err == nil {
		return h.readUnsized(w, f, buf, got)
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	span, err := parseRange(r.Header.Get("Range"), int64(got))
	if err != nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", got))
		return err
	}
	span.begin(w, int64(got))
	_, err = w.Write(buf[span.first : span.first+span.length])
	return err
}

func (h *Handler) readUnsized(w http.ResponseWriter, f *os.File, buf *buffer, got int) error {
	w.WriteHeader(http.StatusOK)
	for {
		if _, err := w.Write(buf[:got]); err != nil {
			return err
		}
		var err error
		_ = h.disk.run(func() error { got, err = fill(f, buf[:]); return nil })
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if got == 0 {
			return nil
		}
	}
}

// span is the part of a file that was asked for.
type span struct {
	first, length int64
	partial       bool
}

// begin writes the head of the answer.
func (s span) begin(w http.ResponseWriter, size int64) {
	w.Header().Set("Content-Length", strconv.FormatInt(s.length, 10))
	status := http.StatusOK
	if s.partial {
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", s.first, s.first+s.length-1, size))
	}
	w.WriteHeader(status)
}

// parseRange reads one range of bytes. Several at once, other units and what cannot be
// read are ignored, as HTTP has it: the answer is then the whole.
func parseRange(header string, size int64) (span, error) {
	whole := span{0, size, false}
	spec, ok := strings.CutPrefix(header, "bytes=")
	from, to, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash {
		return whole, nil
	}
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	switch {
	case from == "" && err2 == nil && last >= 0: // the last bytes
		first, last = max(size-last, 0), size-1
	case from != "" && err1 == nil && first >= 0 && to == "":
		last = size - 1
	case from == "" || err1 != nil || err2 != nil || first < 0 || last < first:
		return whole, nil
	}
	last = min(last, size-1)
	if first > last {
		return span{}, wire.InvalidRange(fmt.Sprintf("the file has %d bytes", size))
	}
	return span{first, last - first + 1, true}, nil
}
