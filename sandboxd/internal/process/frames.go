package process

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"orchard/sandboxd/internal/wire"
)

// Types of frames.
const (
	frameStatus = 3
	frameGap    = 4
	frameAlive  = 5
	frameExit   = 6
)

// frameHead is the length of `type u8 | offset u64 BE | length u32 BE`.
const frameHead = 13

// putHead writes the head of a frame to the first bytes of p.
func putHead(p []byte, kind byte, offset int64, length int) {
	p[0] = kind
	binary.BigEndian.PutUint64(p[1:], uint64(offset))
	binary.BigEndian.PutUint32(p[9:], uint32(length))
}

// frame is one frame as it was read.
type frame struct {
	kind    byte
	offset  int64
	payload []byte
}

// readFrame reads one frame of at most limit bytes of payload.
func readFrame(r io.Reader, limit int) (frame, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	length := binary.BigEndian.Uint32(head[9:])
	if uint64(length) > uint64(limit) {
		return frame{}, fmt.Errorf("a frame of %d bytes is beyond the limit of %d", length, limit)
	}
	f := frame{kind: head[0], offset: int64(binary.BigEndian.Uint64(head[1:])), payload: make([]byte, length)}
	if _, err := io.ReadFull(r, f.payload); err != nil {
		return frame{}, errors.Join(io.ErrUnexpectedEOF, err)
	}
	return f, nil
}

// frameWriter writes frames into an answer; it flushes only when told.
type frameWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newFrameWriter(w http.ResponseWriter, code int) *frameWriter {
	w.Header().Set("Content-Type", "application/vnd.orchard.frames")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	return &frameWriter{w: w, control: http.NewResponseController(w)}
}

// write writes a small frame.
func (f *frameWriter) write(kind byte, offset int64, payload []byte) error {
	p := make([]byte, frameHead+len(payload))
	putHead(p, kind, offset, len(payload))
	copy(p[frameHead:], payload)
	_, err := f.w.Write(p)
	return err
}

func (f *frameWriter) status(kind byte, s status) error {
	body, err := json.Marshal(s)
	if err != nil {
		return wire.Internal(err)
	}
	return f.write(kind, 0, body)
}

// gap says that bytes of a stream from one offset to the next are not sent.
func (f *frameWriter) gap(stream int, from, next int64) error {
	payload := binary.BigEndian.AppendUint64([]byte{byte(stream + 1)}, uint64(next))
	return f.write(frameGap, from, payload)
}

func (f *frameWriter) flush() error { return f.control.Flush() }
