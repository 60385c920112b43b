package output

import (
	"errors"
	"io"
	"os"
)

// ErrDropped says that the output is no longer kept.
var ErrDropped = errors.New("the output is no longer kept")

// ReadAt reads bytes at off, or skips a missing part: next is the offset of the first
// byte read (more than off after a gap). n is 0 if off is where the stream ends now.
func (s *Spool) ReadAt(p []byte, off int64) (n int, next int64, err error) {
	for {
		n, next, err = s.readOnce(p, off)
		if errors.Is(err, os.ErrClosed) { // closed between our look and our read: look again
			continue
		}
		if err != nil || n == 0 || s.still(next) {
			return n, next, err
		}
	}
}

// still tells that the byte at off has not been overwritten while it was read.
func (s *Spool) still(off int64) bool {
	e := s.Extent()
	return off < e.LostFrom || off >= e.LostTo
}

func (s *Spool) readOnce(p []byte, off int64) (n int, next int64, err error) {
	s.mu.Lock()
	if s.dropped {
		s.mu.Unlock()
		return 0, off, ErrDropped
	}
	if e := s.extent(); off >= e.LostFrom && off < e.LostTo {
		off = e.LostTo
	}
	if off >= s.total {
		s.mu.Unlock()
		return 0, off, nil
	}
	at, fit := off, s.headCap-off
	if off >= s.headCap {
		in := (off - s.headCap) % s.tailCap
		at, fit = s.headCap+in, s.tailCap-in
	}
	p = p[:min(int64(len(p)), fit, s.total-off)]
	if off >= s.headCap && s.ring != nil {
		n = copy(p, s.ring[at-s.headCap:])
		s.mu.Unlock()
		return n, off, nil
	}
	if s.file == nil && !s.parked {
		n = copy(p, s.memory[at:])
		s.mu.Unlock()
		return n, off, nil
	}
	file, name, parked := s.file, s.name, s.parked
	s.mu.Unlock()
	if parked {
		if file, err = s.store.dir.OpenFile(name, os.O_RDONLY, 0); err != nil {
			return 0, off, ErrDropped
		}
		defer file.Close()
	}
	s.store.disk <- struct{}{}
	n, err = file.ReadAt(p, at)
	<-s.store.disk
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, off, err
}
