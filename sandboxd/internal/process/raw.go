package process

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"orchard/sandboxd/internal/output"
	"orchard/sandboxd/internal/wire"
)

// getOutput answers the spool of a stream, as it is now. Where a middle part is missing
// it is skipped and named; offsets of Range are those of the stream.
func (t *Table) getOutput(w http.ResponseWriter, r *http.Request) error {
	p, err := t.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	var spool *output.Spool
	switch r.PathValue("name") {
	case "stdout":
		spool = p.streams[0]
	case "stderr":
		spool = p.streams[1]
	default:
		return wire.NotFound("no_stream", "stdout or stderr is due")
	}
	leave, err := t.streams.Enter()
	if err != nil {
		return err
	}
	defer leave()
	held := spool.Extent()
	from, to, partial, problem := parseRange(r.Header.Get("Range"), held.Total)
	if problem != nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", held.Total))
		return problem
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Accept-Ranges", "bytes")
	code := http.StatusOK
	if partial {
		code = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, held.Total))
	}
	lost := overlap(from, to, held.LostFrom, held.LostTo)
	if lost > 0 {
		h.Set("Orchard-Lost", fmt.Sprintf("%d-%d", held.LostFrom, held.LostTo-1))
	}
	if closed(p.exited) && held.Closed { // else a ring may overwrite a part while we send
		h.Set("Content-Length", strconv.FormatInt(to-from-lost, 10))
	}
	w.WriteHeader(code)
	return copySpool(w, spool, from, to)
}

func overlap(a, b, c, d int64) int64 { return max(0, min(b, d)-max(a, c)) }

func copySpool(w http.ResponseWriter, spool *output.Spool, from, to int64) error {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for from < to {
		n, at, err := spool.ReadAt((*buffer)[:min(chunk, to-from)], from)
		if err != nil {
			return err
		}
		n = int(max(0, min(int64(n), to-at)))
		if n == 0 {
			return nil
		}
		if _, err := w.Write((*buffer)[:n]); err != nil {
			return err
		}
		from = at + int64(n)
	}
	return nil
}

// parseRange understands one range of bytes; a header of another shape is ignored, as
// HTTP says. to is exclusive.
func parseRange(header string, total int64) (from, to int64, partial bool, problem *wire.Problem) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	if !ok || strings.Contains(spec, ",") {
		return 0, total, false, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return 0, total, false, nil
	}
	a, errA := strconv.ParseInt(first, 10, 64)
	b, errB := strconv.ParseInt(last, 10, 64)
	switch {
	case first == "" && errB == nil && b >= 0: // the last b bytes
		from, to = max(0, total-b), total
	case errA == nil && a >= 0 && last == "":
		from, to = a, total
	case errA == nil && errB == nil && a >= 0 && b >= a:
		from, to = a, b+1
		if b >= total {
			to = total
		}
	default:
		return 0, total, false, nil
	}
	if from >= total || from >= to {
		return 0, 0, false, wire.InvalidRange(fmt.Sprintf("%q of a stream of %d bytes", header, total))
	}
	return from, to, true, nil
}
