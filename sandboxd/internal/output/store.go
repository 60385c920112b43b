// Package output keeps what a command wrote: all of it up to a limit, beyond that the
// first and the newest half, readable at any offset by any number of readers, without
// ever holding the writer up.
package output

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"orchard/sandboxd/internal/dirfd"
	"orchard/sandboxd/internal/memfd"
)

const (
	// small is what a stream keeps in memory before it goes to a file.
	small = 64 << 10
	// budgetBytes bounds what all streams together keep in memory.
	budgetBytes = 8 << 20
	// memfdLimit bounds a stream where there is no state folder.
	memfdLimit = 64 << 20
	// diskThreads bounds how many threads wait for the spool's disk at once, so that a
	// slow disk never needs more threads than sandboxd has beforehand.
	diskThreads = 8
	// diskless is the size of the newest part that is kept when the disk is full.
	diskless = 256 << 10
)

// Store makes spools. Its files lie in the state folder, or in memory without one.
type Store struct {
	dir   *dirfd.Dir
	limit int64
	used  atomic.Int64 // bytes of memory taken by small streams
	held  atomic.Int64 // bytes written to files that are kept
	seq   atomic.Int64
	disk  chan struct{}
}

// NewStore makes the folder spool below state (nil: no state folder), empty.
func NewStore(state *dirfd.Dir, limit int64) (*Store, error) {
	s := &Store{limit: limit, disk: make(chan struct{}, diskThreads)}
	if state == nil {
		s.limit = min(limit, memfdLimit)
		return s, nil
	}
	if err := state.Mkdir("spool", 0o700); err != nil && err != syscall.EEXIST { //nolint:errorlint // a bare errno
		return nil, fmt.Errorf("state folder: %w", err)
	}
	dir, err := state.Sub("spool")
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	s.dir = &dir
	return s, nil
}

// Limit is how many bytes of one stream are kept.
func (s *Store) Limit() int64 { return s.limit }

// take asks for n bytes of the memory budget.
func (s *Store) take(n int64) bool {
	if s.used.Add(n) > budgetBytes {
		s.used.Add(-n)
		return false
	}
	return true
}

// Pressed tells that more is held than is good, so that the oldest results should go
// before their time: four streams' worth of files, or a little without a state folder.
func (s *Store) Pressed() bool { return s.held.Load() > 4*s.limit }

// remove removes a file that has a name.
func (s *Store) remove(name string) {
	if name != "" && s.dir != nil {
		_ = s.dir.Unlink(name)
	}
}

// create makes a file; its name is "" if it has none.
func (s *Store) create() (f *os.File, name string, err error) {
	if s.dir == nil {
		f, err = memfd.New("spool", nil)
		return f, "", err
	}
	name = fmt.Sprintf("s%d", s.seq.Add(1))
	f, err = s.dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	return f, name, err
}

// New makes an empty spool.
func (s *Store) New() *Spool {
	head := s.limit / 2
	return &Spool{store: s, headCap: head, tailCap: s.limit - head}
}
