package output

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"sync"
	"syscall"
	"testing"

	"orchard/sandboxd/internal/dirfd"
)

func store(t *testing.T, limit int64) (*Store, string) {
	t.Helper()
	folder := t.TempDir()
	dir, err := dirfd.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(&dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	return s, folder + "/spool"
}

// pattern is a stream whose every byte tells its offset.
func pattern(from, n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		o := from + int64(i)
		p[i] = byte(o*7 + o>>8*13 + o>>16*31)
	}
	return p
}

// readAll reads from off to the end and checks every byte; it gives what was skipped.
func readAll(t *testing.T, s *Spool, off int64) (skipped int64) {
	t.Helper()
	buffer := make([]byte, 10000)
	for {
		n, at, err := s.ReadAt(buffer, off)
		if err != nil {
			t.Fatal(err)
		}
		skipped += at - off
		if n == 0 {
			return skipped
		}
		if !bytes.Equal(buffer[:n], pattern(at, int64(n))) {
			t.Fatalf("wrong bytes at %d", at)
		}
		off = at + int64(n)
	}
}

func TestWhatIsKeptIsExactAndTheRestIsCounted(t *testing.T) {
	for _, limit := range []int64{200000, 200001, 1 << 20} {
		for _, total := range []int64{0, 1, 65536, 65537, 100000, 200000, 200001, 999999} {
			for _, piece := range []int64{1000, 4096, 300000} {
				s, _ := store(t, limit)
				spool := s.New()
				for at := int64(0); at < total; at += piece {
					spool.Append(pattern(at, min(piece, total-at)))
				}
				e := spool.Extent()
				if e.Total != total || e.Lost() != max(0, total-limit) {
					t.Fatalf("limit %d, total %d: %+v", limit, total, e)
				}
				for _, closed := range []bool{false, true} {
					if closed {
						spool.Close()
					}
					if skipped := readAll(t, spool, 0); skipped != e.Lost() {
						t.Fatalf("skipped %d of %+v", skipped, e)
					}
				}
				spool.Drop()
			}
		}
	}
}

func TestReadersNeverSeeOverwrittenBytes(t *testing.T) {
	s, _ := store(t, 128<<10)
	spool := s.New()
	var wait sync.WaitGroup
	for seed := range int64(4) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			random := rand.New(rand.NewSource(seed))
			buffer := make([]byte, 20000)
			for {
				e := spool.Extent()
				off := random.Int63n(e.Total + 1)
				n, at, err := spool.ReadAt(buffer, off)
				if err != nil || !bytes.Equal(buffer[:n], pattern(at, int64(n))) {
					t.Errorf("at %d: %d wrong bytes, %v", at, n, err)
					return
				}
				if e.Closed {
					return
				}
			}
		}()
	}
	random := rand.New(rand.NewSource(99))
	for at := int64(0); at < 8<<20; {
		n := random.Int63n(50000) + 1
		spool.Append(pattern(at, n))
		at += n
	}
	spool.Close()
	wait.Wait()
}

func TestADiskThatFillsKeepsTheHeadAndTheNewest(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("a small tmpfs cannot be mounted here: %v", err)
	}
	defer func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) }()
	dir, err := dirfd.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, limit := range []int64{300 << 10, 10 << 20} {
		s, err := NewStore(&dir, limit)
		if err != nil {
			t.Fatal(err)
		}
		// The first spool fits or fills the disk, the second meets a full one at once.
		for range 2 {
			spool := s.New()
			defer spool.Drop()
			const total = 3 << 20
			for at := int64(0); at < total; at += 5000 {
				spool.Append(pattern(at, min(5000, total-at)))
			}
			e := spool.Extent()
			if e.Total != total || e.Lost() == 0 || e.Lost() >= total-diskless/2 || readAll(t, spool, 0) != e.Lost() {
				t.Errorf("limit %d: %+v", limit, e)
			}
		}
	}
}

func TestADroppedSpoolLeavesNoFileAndSaysSo(t *testing.T) {
	s, folder := store(t, 1<<20)
	spool := s.New()
	spool.Append(pattern(0, 500000))
	changed := spool.Changed()
	spool.Drop()
	<-changed
	if _, _, err := spool.ReadAt(make([]byte, 10), 0); !errors.Is(err, ErrDropped) {
		t.Errorf("reading gave %v", err)
	}
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("%d files are left", len(left))
	}
	if s.used.Load() != 0 || s.held.Load() != 0 {
		t.Errorf("the account says %d and %d", s.used.Load(), s.held.Load())
	}
}

func TestAllSmallStreamsTogetherStayWithinTheBudget(t *testing.T) {
	s, _ := store(t, 1<<20)
	var spools []*Spool
	for range 400 {
		spool := s.New()
		spool.Append(pattern(0, 60000))
		spool.Close()
		spools = append(spools, spool)
	}
	if used := s.used.Load(); used > budgetBytes {
		t.Errorf("%d bytes in memory", used)
	}
	for _, spool := range spools {
		if readAll(t, spool, 0) != 0 {
			t.Fatal("bytes are missing")
		}
	}
}
