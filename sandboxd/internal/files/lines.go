package files

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"

	"orchard/sandboxd/internal/wire"
)

// lines writes a stream of JSON lines. Until the first of them leaves, a failure can
// still be answered with its status.
type lines struct {
	w     http.ResponseWriter
	buf   *bufio.Writer
	enc   *json.Encoder
	count int64
}

func newLines(w http.ResponseWriter) *lines {
	buf := bufio.NewWriterSize(w, 32<<10)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	w.Header().Set("Content-Type", "application/x-ndjson")
	return &lines{w: w, buf: buf, enc: enc}
}

func (l *lines) put(v any) error {
	l.count++
	return l.enc.Encode(v)
}

// flush sends what is held back.
func (l *lines) flush() error {
	if err := l.buf.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(l.w).Flush()
}

// endLine is the last line of a list or manifest: without it the stream was cut.
type endLine struct {
	End       bool  `json:"end"`
	Count     int64 `json:"count"`
	Truncated bool  `json:"truncated,omitempty"`
}

// end closes the stream: with the end line, or, once lines have left, with the problem.
func (l *lines) end(path string, truncated bool, err error) error {
	err = wire.FileError(path, err)
	if err == nil {
		if err := l.enc.Encode(endLine{true, l.count, truncated}); err != nil {
			return err
		}
		return l.buf.Flush()
	}
	var p *wire.Problem
	if !wire.Started(l.w) || !errors.As(err, &p) {
		return err
	}
	if err := l.enc.Encode(map[string]*wire.Problem{"error": p}); err != nil {
		return err
	}
	return l.buf.Flush()
}
