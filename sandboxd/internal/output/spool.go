package output

import (
	"os"
	"sync"
)

// Spool is one stream of one command. Offset o lies, as long as it is kept, in the head
// (o < headCap) or in the tail, a ring that holds the newest tailCap bytes.
type Spool struct {
	store *Store

	mu        sync.Mutex
	memory    []byte   // everything, while there is no file
	file      *os.File // head at its offsets, then the ring
	name      string   // of the file in the state folder; "" if it has none
	held      int64    // bytes written to the file, for the account of the store
	parked    bool     // the file is closed and opened again by name for each read
	total     int64    // bytes written so far
	headCap   int64
	tailCap   int64
	tailFrom  int64  // bytes in [headCap, tailFrom) are lost
	ring      []byte // the tail in memory, once the disk is full
	closed    bool
	dropped   bool
	broadcast chan struct{} // made by the first who waits, closed by the next change
}

// Extent is what a spool holds at one moment.
type Extent struct {
	Total             int64 // bytes written
	LostFrom, LostTo  int64 // the missing part; equal if none is
	Closed, Discarded bool
}

// Lost is how many bytes are missing.
func (e Extent) Lost() int64 { return e.LostTo - e.LostFrom }

// Extent tells what is kept now.
func (s *Spool) Extent() Extent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.extent()
}

func (s *Spool) extent() Extent {
	e := Extent{Total: s.total, Closed: s.closed, Discarded: s.dropped}
	if s.tailFrom > s.headCap {
		e.LostFrom, e.LostTo = s.headCap, s.tailFrom
	}
	return e
}

// Changed gives a channel that is closed at the next append, close or drop after now.
func (s *Spool) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broadcast == nil {
		s.broadcast = make(chan struct{})
	}
	return s.broadcast
}

// wake tells all who wait; the lock is held.
func (s *Spool) wake() {
	if s.broadcast != nil {
		close(s.broadcast)
		s.broadcast = nil
	}
}

// Append adds p. It never fails and never waits for a reader: what cannot be kept is
// counted as lost. Only one goroutine appends.
func (s *Spool) Append(p []byte) {
	for len(p) > 0 {
		n := s.appendPart(p)
		p = p[n:]
	}
}

// appendPart adds a part of p that lies in one piece of the store, and tells its length.
func (s *Spool) appendPart(p []byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		s.total += int64(len(p))
		return len(p)
	}
	if s.file == nil && s.ring == nil {
		if s.keepSmall(p) {
			return len(p)
		}
		s.spill()
	}
	at, n := s.place(int64(len(p)))
	whole := s.tailFrom <= s.headCap && at == s.total // nothing lost or overwritten so far
	if s.total >= s.headCap {                         // what the ring overwrites is lost from here on, before it is
		s.tailFrom = max(s.tailFrom, s.headCap, s.total+n-s.tailCap)
	}
	if s.ring != nil {
		copy(s.ring[at:at+n], p[:n])
	} else if s.write(p[:n], at) != nil {
		s.diskFull(whole)
		return 0
	}
	s.advance(n)
	return int(n)
}

// write writes to the file outside the lock, so that the disk holds up no reader.
func (s *Spool) write(p []byte, at int64) error {
	file := s.file
	s.mu.Unlock()
	defer s.mu.Lock()
	s.store.disk <- struct{}{}
	n, err := file.WriteAt(p, at)
	<-s.store.disk
	s.store.held.Add(int64(n))
	s.held += int64(n)
	return err
}

func (s *Spool) advance(n int64) {
	s.total += n
	s.wake()
}

// place tells where the next byte goes and how many fit there in one piece.
func (s *Spool) place(n int64) (at, fit int64) {
	if s.total < s.headCap {
		return s.total, min(n, s.headCap-s.total)
	}
	in := (s.total - s.headCap) % s.tailCap
	fit = min(n, s.tailCap-in)
	if s.ring != nil {
		return in, fit
	}
	return s.headCap + in, fit
}

// keepSmall keeps p in memory if the stream is small and the budget allows it.
func (s *Spool) keepSmall(p []byte) bool {
	n := int64(len(p))
	if s.total+n > min(small, s.headCap) || !s.store.take(n) {
		return false
	}
	s.memory = append(s.memory, p...)
	s.advance(n)
	return true
}

// spill moves what is in memory to a file. Without one, what is in memory becomes the
// head, and only the newest part is kept from here on.
func (s *Spool) spill() {
	file, name, err := s.store.create()
	if err == nil {
		if _, err = file.WriteAt(s.memory, 0); err != nil {
			file.Close()
			s.store.remove(name)
		}
	}
	if err != nil {
		s.diskFull(true)
		return
	}
	s.file, s.name = file, name
	s.forget()
}

// diskFull gives up the disk for new bytes: what it holds in order stays as the head,
// the newest part is kept in memory.
func (s *Spool) diskFull(whole bool) {
	if s.dropped {
		return
	}
	if whole {
		s.headCap = s.total
	}
	s.tailFrom = s.total
	s.tailCap = diskless
	s.ring = make([]byte, diskless)
}

// forget gives the memory of a small stream back.
func (s *Spool) forget() {
	s.store.used.Add(-int64(len(s.memory)))
	s.memory = nil
}

// Close says that nothing more will be written. The file is closed too if it has a name:
// ten thousand results must not hold twenty thousand descriptors.
func (s *Spool) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.file != nil && s.name != "" {
		s.file.Close()
		s.file, s.parked = nil, true
	}
	s.wake()
}

// Drop throws away what is kept. Readers are told so.
func (s *Spool) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return
	}
	s.dropped = true
	if s.file != nil {
		s.file.Close()
	}
	s.store.held.Add(-s.held)
	s.store.remove(s.name)
	s.forget()
	s.file, s.ring, s.name = nil, nil, ""
	s.wake()
}
