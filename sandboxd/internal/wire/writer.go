package wire

import (
	"io"
	"net/http"
)

// Writer remembers whether an answer has begun. The server wraps every answer in one.
// Use http.NewResponseController to flush, hijack or set deadlines: it looks through it.
type Writer struct {
	http.ResponseWriter
	started bool
}

// NewWriter wraps w.
func NewWriter(w http.ResponseWriter) *Writer { return &Writer{ResponseWriter: w} }

// Unwrap serves http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter {
	return w.ResponseWriter
}

// WriteHeader begins the answer.
func (w *Writer) WriteHeader(status int) {
	w.started = w.started || status >= 200 || status == http.StatusSwitchingProtocols
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the answer.
func (w *Writer) Write(p []byte) (int, error) {
	w.started = true
	return w.ResponseWriter.Write(p)
}

// ReadFrom keeps sendfile and splice of the inner writer within reach of io.Copy.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	w.started = true
	return io.Copy(w.ResponseWriter, r)
}

// Flush sends what is buffered.
func (w *Writer) Flush() {
	w.started = true
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Started tells whether the answer has begun (false for a writer not wrapped here).
func Started(w http.ResponseWriter) bool {
	t, ok := w.(*Writer)
	return ok && t.started
}

// MarkStarted is called by a handler that hijacked the connection.
func MarkStarted(w http.ResponseWriter) {
	if t, ok := w.(*Writer); ok {
		t.started = true
	}
}
