package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"orchard/sandboxd/internal/wire"
)

// endOfInput is what a terminal takes for the end of input at the start of a line (^D).
const endOfInput = 4

// stdin is the open input of a command. accepted counts the bytes that went in, so that
// a request sent twice puts nothing in twice.
type stdin struct {
	writing sync.Mutex // held by the one request that writes
	tty     bool

	mu       sync.Mutex
	to       *os.File // nil: closed
	accepted int64
	ended    bool // by eof, not by the end of the command
}

func (s *stdin) state() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == nil {
		return "closed"
	}
	return "open"
}

func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil && !s.tty {
		s.to.Close()
	}
	s.to = nil
}

// write accepts the bytes of body, the first of which has the position offset in the
// whole input, and skips those that are in already.
func (s *stdin) write(ctx context.Context, body io.Reader, offset int64, eof bool) (int64, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	to, accepted, ended := s.now()
	if offset > accepted {
		return 0, wire.Conflict("stdin_gap", fmt.Sprintf("offset %d, but only %d bytes are accepted", offset, accepted))
	}
	if err := s.copy(ctx, to, body, accepted-offset); err != nil {
		return 0, err
	}
	switch {
	case eof && to != nil:
		s.end(to)
	case eof && !ended:
		return 0, closedStdin()
	}
	_, accepted, _ = s.now()
	return accepted, nil
}

func (s *stdin) now() (to *os.File, accepted int64, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to, s.accepted, s.ended
}

// copy skips bytes that are in already and writes the rest.
func (s *stdin) copy(ctx context.Context, to *os.File, body io.Reader, skip int64) error {
	if _, err := io.CopyN(io.Discard, body, skip); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // all of it was in already
		}
		return wire.Invalid("body", "the body was cut short")
	}
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for {
		n, err := body.Read((*buffer)[:smallPipe])
		if n > 0 {
			if failed := s.put(ctx, to, (*buffer)[:n]); failed != nil {
				return failed
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return wire.Invalid("body", "the body was cut short; what came is accepted")
		}
	}
}

// put writes p. While the command does not read, it looks every second whether the
// client is still there, so that a command which never reads holds no request for ever;
// soon for the first time, since others may wait for their turn behind a client that left.
func (s *stdin) put(ctx context.Context, to *os.File, p []byte) error {
	if to == nil {
		return closedStdin()
	}
	for wait := 10 * time.Millisecond; ; wait = time.Second {
		_ = to.SetWriteDeadline(time.Now().Add(wait))
		n, err := to.Write(p)
		p = p[n:]
		s.mu.Lock()
		s.accepted += int64(n)
		s.mu.Unlock()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EIO):
			s.close()
			return closedStdin()
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case ctx.Err() != nil || wire.PeerGone(ctx):
			return wire.Invalid("body", "the client is gone")
		}
	}
}

// end closes the input for good; a terminal is told so by its character.
func (s *stdin) end(to *os.File) {
	if s.tty {
		_, _ = to.Write([]byte{endOfInput})
	}
	s.close()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
}

func closedStdin() *wire.Problem {
	return wire.Conflict("stdin_closed", "the input of this process is closed")
}

func (t *Table) postStdin(w http.ResponseWriter, r *http.Request) error {
	p, err := t.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	offset, err := queryInt(r, "offset", -1)
	if err != nil {
		return err
	}
	if offset < 0 {
		return wire.Invalid("offset", "the position of the first byte in the whole input is due")
	}
	eof := r.URL.Query().Get("eof")
	if eof != "" && eof != "0" && eof != "1" {
		return wire.Invalid("eof", "0 or 1 is due")
	}
	accepted, err := p.stdin.write(r.Context(), r.Body, offset, eof == "1")
	if err != nil {
		return err
	}
	wire.JSON(w, http.StatusOK, map[string]int64{"accepted": accepted})
	return nil
}

// queryInt reads a whole number, not below 0, of the query.
func queryInt(r *http.Request, name string, absent int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, wire.Invalid(name, "a whole number from 0 on is due")
	}
	return n, nil
}
