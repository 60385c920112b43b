package process

import (
	"crypto/sha256"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"

	"orchard/sandboxd/internal/wire"
)

const (
	keepResults = 10000
	keepFor     = time.Hour
	sweepEvery  = 30 * time.Second
)

// fingerprint stands for an operation id whose result is gone: ids are remembered as
// long as the sandbox lives, and may be many.
type fingerprint [16]byte

// Table knows every process by its operation id.
type Table struct {
	settings *Settings
	streams  *wire.Gate
	large    *wire.Gate
	// launching is held for reading over each start; the end waits until nobody holds it,
	// so that no command starts after the last kill.
	launching sync.RWMutex

	mu       sync.Mutex
	byID     map[string]*Process
	finished []*Process // oldest first
	expired  map[fingerprint]struct{}
	closing  bool
}

// NewTable makes an empty table.
func NewTable(s *Settings) *Table {
	t := &Table{settings: s, streams: wire.NewGate("streams", 4096),
		large: wire.NewGate("large bodies", 32),
		byID:  map[string]*Process{}, expired: map[fingerprint]struct{}{}}
	go func() {
		for range time.Tick(sweepEvery) {
			t.trim(time.Now())
		}
	}()
	return t
}

// find gives a known process that was started; 404 and 410 as the contract says.
func (t *Table) find(id string) (*Process, error) {
	p, err := t.lookup(id)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, wire.NotFound("no_process", fmt.Sprintf("no process %q", id))
	}
	<-p.ready
	if p.failed != nil {
		return nil, wire.NotFound("no_process", fmt.Sprintf("process %q was not started", id))
	}
	return p, nil
}

func (t *Table) lookup(id string) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.byID[id]; ok {
		return p, nil
	}
	if _, ok := t.expired[print(id)]; ok {
		return nil, wire.Expired(fmt.Sprintf("process %q ran; its result is no longer kept", id))
	}
	return nil, nil
}

func print(id string) (f fingerprint) {
	sum := sha256.Sum256([]byte(id))
	copy(f[:], sum[:])
	return f
}

// Start starts q, or gives the process that this id stands for already. A start that
// failed leaves no trace: nothing ran, so the id may be used again.
func (t *Table) Start(q *request) (p *Process, created bool, err error) {
	t.launching.RLock()
	defer t.launching.RUnlock()
	t.mu.Lock()
	if known, ok := t.byID[q.ID]; ok {
		t.mu.Unlock()
		<-known.ready
		return known, false, known.failed
	}
	if _, ok := t.expired[print(q.ID)]; ok {
		t.mu.Unlock()
		_, err = t.lookup(q.ID)
		return nil, false, err
	}
	if t.closing {
		t.mu.Unlock()
		return nil, false, shuttingDown()
	}
	p = newProcess(q)
	t.byID[q.ID] = p
	t.mu.Unlock()
	p.failed = p.launch(t.settings, q)
	if p.failed != nil {
		t.mu.Lock()
		delete(t.byID, q.ID)
		t.mu.Unlock()
		p.abandon()
		close(p.ready)
		return nil, false, p.failed
	}
	close(p.ready)
	go p.watch(q.timeout(), t.finish)
	return p, true, nil
}

func newProcess(q *request) *Process {
	return &Process{id: q.ID, merge: q.Merge, outputLimit: q.outputLimit(), killOnBreak: q.KillOnDisconnect,
		ready: make(chan struct{}), exited: make(chan struct{}), swept: make(chan struct{}), overdue: make(chan struct{})}
}

// abandon drops what a failed start had made.
func (p *Process) abandon() {
	for _, s := range p.streams {
		if s != nil {
			s.Drop()
		}
	}
}

func (t *Table) finish(p *Process) {
	t.mu.Lock()
	t.finished = append(t.finished, p)
	t.mu.Unlock()
	t.trim(time.Now())
}

// trim forgets results that are too old, too many or too large in sum. A result whose
// background children still write is kept, as the newest is.
func (t *Table) trim(now time.Time) {
	t.mu.Lock()
	var gone []*Process
	for len(t.finished) > 1 {
		p := t.finished[0]
		due := len(t.finished) > keepResults || now.Sub(p.end.at) > keepFor || t.settings.Store.Pressed()
		if !due {
			break
		}
		t.finished = t.finished[1:]
		if !p.settled() {
			t.finished = append(t.finished, p)
			break
		}
		delete(t.byID, p.id)
		t.expired[print(p.id)] = struct{}{}
		gone = append(gone, p)
		p.drop()
	}
	t.mu.Unlock()
	_ = gone
}

// all lists the started processes.
func (t *Table) all() []*Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*Process, 0, len(t.byID))
	for _, p := range t.byID {
		if closed(p.ready) && p.failed == nil {
			out = append(out, p)
		}
	}
	return out
}

// Running counts the processes that have not exited.
func (t *Table) Running() int {
	n := 0
	for _, p := range t.all() {
		if p.running() {
			n++
		}
	}
	return n
}

// Shutdown starts nothing more and kills all. What still runs is doomed: that it is
// killed now is the end of the sandbox, and never shown as the command's own.
func (t *Table) Shutdown() {
	t.mu.Lock()
	t.closing = true
	t.mu.Unlock()
	t.awaitLaunches()
	for _, p := range t.all() {
		if p.running() {
			p.doomed.Store(true)
		}
	}
	t.settings.Maker.KillAll()
}

// awaitLaunches waits for the starts that are under way; not for ever, since one stands
// still as long as the sandbox is frozen.
func (t *Table) awaitLaunches() {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if t.launching.TryLock() {
			t.launching.Unlock()
			return
		}
	}
}

func shuttingDown() *wire.Problem {
	return &wire.Problem{Status: http.StatusServiceUnavailable, Code: "shutting_down", Detail: "the lease of this sandbox has ended"}
}

// Entrypoint starts the image's own program; that it cannot start or ends is no reason
// for the sandbox to end.
func (t *Table) Entrypoint(argv []string) {
	q := &request{ID: "entrypoint", Argv: &argv}
	err := q.check()
	if err == nil {
		_, _, err = t.Start(q)
	}
	if err != nil {
		log.Printf("the entrypoint was not started: %v", err)
	}
}
