package process

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"orchard/sandboxd/internal/mark"
	"orchard/sandboxd/internal/output"
	"orchard/sandboxd/internal/wire"
)

// overdueAfter is when a time-out is told even if something would not die.
const overdueAfter = 450 * time.Millisecond

// Process is one command, from its start until its result expires.
type Process struct {
	id          string
	argv        []string
	merge       bool
	terminal    bool
	outputLimit int64
	killOnBreak bool
	began       time.Time
	tree        mark.Tree
	stdin       *stdin
	streams     [2]*output.Spool // stdout, stderr
	pumps       []*pump

	ready  chan struct{} // closed when the start has succeeded or failed
	failed error         // why nothing was started; valid after ready
	exited chan struct{} // closed when the exit is reported

	doomed      atomic.Bool // the sandbox ended while it ran
	endActivity func()
	timer       *time.Timer
	swept       chan struct{} // closed when the time-out has killed all it could
	overdue     chan struct{} // closed when the time-out is told in any case

	mu        sync.Mutex
	timedOut  bool
	cancelled bool
	mainEnded bool
	end       *ending
}

// ending is how a command ended.
type ending struct {
	at       time.Time
	status   syscall.WaitStatus
	toll     mark.Toll
	timedOut bool
	cancel   bool
}

// status is the process as the wire shows it.
type status struct {
	ID           string   `json:"id"`
	PID          int      `json:"pid"`
	State        string   `json:"state"`
	StartedAt    string   `json:"started_at"`
	Duration     float64  `json:"duration_s"`
	ExitCode     *int     `json:"exit_code"`
	Signal       *string  `json:"signal"`
	TimedOut     bool     `json:"timed_out"`
	OOMKilled    bool     `json:"oom_killed"`
	Cancelled    bool     `json:"cancelled"`
	RefusedForks int64    `json:"refused_forks"`
	StdoutBytes  int64    `json:"stdout_bytes"`
	StderrBytes  int64    `json:"stderr_bytes"`
	StdoutLost   int64    `json:"stdout_lost"`
	StderrLost   int64    `json:"stderr_lost"`
	Stdin        string   `json:"stdin"`
	PTY          bool     `json:"pty"`
	Merge        bool     `json:"merge"`
	Argv         []string `json:"argv"`
}

// status shows the process now.
func (p *Process) status() status {
	return p.statusWith([2]output.Extent{p.streams[0].Extent(), p.streams[1].Extent()})
}

// statusWith shows the process with the extents that a stream has sent.
func (p *Process) statusWith(held [2]output.Extent) status {
	s := status{ID: p.id, PID: p.tree.PID(), State: "running", Argv: p.argv, PTY: p.terminal, Merge: p.merge,
		StartedAt: p.began.UTC().Format(time.RFC3339Nano), Duration: time.Since(p.began).Seconds(),
		Stdin: p.stdin.state(), StdoutBytes: held[0].Total, StdoutLost: held[0].Lost(),
		StderrBytes: held[1].Total, StderrLost: held[1].Lost()}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.TimedOut, s.Cancelled = p.timedOut, p.cancelled
	if p.end != nil {
		p.end.fill(&s, p.began)
	}
	return s
}

// fill adds how the command ended.
func (e *ending) fill(s *status, began time.Time) {
	s.State, s.Duration, s.TimedOut, s.Cancelled = "exited", e.at.Sub(began).Seconds(), e.timedOut, e.cancel
	if e.status.Signaled() {
		name := signalName(e.status.Signal())
		s.Signal = &name
	} else {
		code := e.status.ExitStatus()
		s.ExitCode = &code
	}
	s.OOMKilled, s.RefusedForks = e.toll.OOMKills > 0, e.toll.RefusedForks
}

// watch follows the command to its end, in a goroutine of its own.
func (p *Process) watch(timeout time.Duration, done func(*Process)) {
	if timeout > 0 {
		p.timer = time.AfterFunc(timeout, p.expire)
	}
	select {
	case <-p.tree.Done():
	case <-p.overdue: // an uninterruptible sleep: it dies when that ends
	}
	at := time.Now()
	p.mu.Lock()
	p.mainEnded = true
	end := &ending{at: at, timedOut: p.timedOut, cancel: p.cancelled}
	p.mu.Unlock()
	if end.timedOut {
		select { // who hears of the time-out finds nothing left
		case <-p.swept:
		case <-p.overdue:
		}
	}
	p.drain(at)
	p.pumps = nil // they go on by themselves; a kept result must be small
	p.report(end)
	done(p)
}

// report makes the end public. What the limits did is read before the mark is given up.
func (p *Process) report(end *ending) {
	end.status, end.toll = syscall.WaitStatus(syscall.SIGKILL), p.tree.Toll()
	if closed(p.tree.Done()) {
		end.status = p.tree.Status()
	}
	if !plausiblyOOM(p.tree, end) {
		end.toll.OOMKills = 0
	}
	if p.timer != nil && p.tree.Empty() {
		p.timer.Stop()
	}
	p.mu.Lock()
	p.end = end
	p.mu.Unlock()
	p.stdin.close()
	close(p.exited)
	p.endActivity()
	p.tree.Release() // nobody needs to wait for that
}

// plausiblyOOM guards against counters that neighbours share: then only a command that
// was killed, or whose shell says so by 137, and that we did not kill, counts.
func plausiblyOOM(tree mark.Tree, end *ending) bool {
	if !mark.SharedToll(tree) {
		return true
	}
	killed := end.status.Signaled() && end.status.Signal() == syscall.SIGKILL ||
		end.status.Exited() && end.status.ExitStatus() == 128+int(syscall.SIGKILL)
	return killed && !end.timedOut && !end.cancel
}

// expire is the time-out: it ends the whole tree, also what a main process left behind.
func (p *Process) expire() {
	p.mu.Lock()
	p.timedOut = p.timedOut || !p.mainEnded
	p.mu.Unlock()
	time.AfterFunc(overdueAfter, func() { close(p.overdue) })
	p.tree.Kill()
	close(p.swept)
}

// cancel kills the tree and waits until nothing is left of it.
func (p *Process) cancel() error {
	p.mu.Lock()
	p.cancelled = p.cancelled || !p.mainEnded
	p.mu.Unlock()
	if !p.tree.Kill() {
		return wire.Conflict("unkillable", "a process of this command is in an uninterruptible sleep; it dies when that ends")
	}
	<-p.exited
	return nil
}

// running tells whether the exit has not been reported yet.
func (p *Process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// settled tells whether the result may be forgotten: nobody writes to it any more.
func (p *Process) settled() bool {
	return !p.running() && p.streams[0].Extent().Closed && p.streams[1].Extent().Closed
}

// drop throws the output away.
func (p *Process) drop() {
	for _, s := range p.streams {
		s.Drop()
	}
}
