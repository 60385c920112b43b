package process

import "time"

const (
	// quiet is how long a pipe that a background child holds open must be silent.
	quiet = 50 * time.Millisecond
	// patience bounds the wait for silence, counted from when all that the main process
	// wrote is in the spool: a background child may write without end.
	patience = 250 * time.Millisecond
)

// drain returns when everything that the main process wrote, until it ended at the moment
// given, is in the spools, and the pipes are closed or fell silent.
func (p *Process) drain(ended time.Time) {
	due := make([]int64, len(p.pumps))
	for i, m := range p.pumps {
		if !closed(m.eof) {
			due[i] = m.written()
		}
	}
	var complete time.Time
	for {
		left, last, short := p.open(due)
		if len(left) == 0 {
			return
		}
		now := time.Now()
		if !short && complete.IsZero() {
			complete = now
		}
		wait := quiet
		if !short {
			wait = min(latest(ended, last).Add(quiet).Sub(now), complete.Add(patience).Sub(now))
			if wait <= 0 {
				return
			}
		}
		pause(left[0], wait)
	}
}

// open lists the pumps that are not at the end, with the time of their last byte, and
// whether one of them still owes bytes that the main process wrote.
func (p *Process) open(due []int64) (left []*pump, last time.Time, short bool) {
	for i, m := range p.pumps {
		if closed(m.eof) {
			continue
		}
		left = append(left, m)
		appended, at := m.progress()
		last = latest(last, at)
		short = short || appended < due[i]
	}
	return left, last, short
}

// pause waits for the end of a pump, or for the time given.
func pause(m *pump, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-m.eof:
	case <-m.moved:
	case <-timer.C:
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
