package process

import (
	"context"
	"net/http"
	"time"

	"orchard/sandboxd/internal/output"
	"orchard/sandboxd/internal/wire"
)

const (
	keepAlive = 10 * time.Second
	// settle is how long the first frames wait for company: a short command is then
	// answered by one packet.
	settle = 2 * time.Millisecond
)

// view is what a reader asked for.
type view struct {
	mode    string // "bounded" or "full"
	code    int
	offsets [2]int64
}

func streamMode(text, field string) (string, error) {
	if text != "" && text != "bounded" && text != "full" {
		return "", wire.Invalid(field, `"bounded" or "full" is due`)
	}
	return text, nil
}

func (t *Table) getStream(w http.ResponseWriter, r *http.Request) error {
	p, err := t.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	v := view{code: http.StatusOK}
	if v.mode, err = streamMode(r.URL.Query().Get("mode"), "mode"); err != nil {
		return err
	}
	if v.mode == "" {
		v.mode = "full"
	}
	for i, name := range []string{"stdout", "stderr"} {
		if v.offsets[i], err = queryInt(r, name, 0); err != nil {
			return err
		}
	}
	return t.stream(w, r, p, v)
}

// reader sends one process to one client.
type reader struct {
	p       *Process
	out     *frameWriter
	ctx     context.Context
	head    int64 // bytes of each stream that go live; all of them if negative
	limit   int64
	offsets [2]int64
	fresh   bool // nothing has been flushed yet
}

// stream sends frames until the exit. A client that goes away, or a spool that fails,
// breaks the stream: without the exit frame it can never be taken for a whole one.
func (t *Table) stream(w http.ResponseWriter, r *http.Request, p *Process, v view) error {
	leave, err := t.streams.Enter()
	if err != nil {
		return err
	}
	defer leave()
	rd := &reader{p: p, ctx: r.Context(), head: -1, offsets: v.offsets, fresh: true}
	if v.mode == "bounded" {
		rd.head, rd.limit = p.outputLimit/2, p.outputLimit
	}
	rd.out = newFrameWriter(w, v.code)
	if err := rd.out.status(frameStatus, p.status()); err != nil {
		return err
	}
	for {
		// Order matters: what is looked at after the channels were taken cannot be missed.
		more := [2]<-chan struct{}{p.streams[0].Changed(), p.streams[1].Changed()}
		exited := closed(p.exited)
		held := [2]output.Extent{p.streams[0].Extent(), p.streams[1].Extent()}
		if exited {
			if p.doomed.Load() {
				return shuttingDown() // no exit frame: it did not end by itself
			}
			return rd.finish(held)
		}
		if err := rd.live(held); err != nil {
			return err
		}
		if err := rd.wait(more); err != nil {
			return err
		}
	}
}

// live sends what may go before the exit.
func (rd *reader) live(held [2]output.Extent) error {
	for sent := true; sent; {
		sent = false
		for i := range rd.offsets {
			end := held[i].Total
			if rd.head >= 0 {
				end = min(end, rd.head)
			}
			if rd.offsets[i] >= end {
				continue
			}
			if err := rd.send(i, end); err != nil {
				return err
			}
			sent = true
		}
	}
	return nil
}

// finish sends the rest and the final status, which tells of the bytes that were there
// when the exit was seen.
func (rd *reader) finish(held [2]output.Extent) error {
	for i := range rd.offsets {
		end := held[i].Total
		if err := rd.skipMiddle(i, end); err != nil {
			return err
		}
		for rd.offsets[i] < end {
			if err := rd.send(i, end); err != nil {
				return err
			}
		}
	}
	return rd.out.status(frameExit, rd.p.statusWith(held)) // goes out with the end of the answer
}

// skipMiddle leaves out what the bounded view does not show.
func (rd *reader) skipMiddle(i int, end int64) error {
	if rd.head < 0 || end <= rd.limit {
		return nil
	}
	if rd.offsets[i] < rd.head { // the head is owed first
		for rd.offsets[i] < rd.head {
			if err := rd.send(i, rd.head); err != nil {
				return err
			}
		}
	}
	tail := end - (rd.limit - rd.head)
	if rd.offsets[i] >= tail {
		return nil
	}
	from := rd.offsets[i]
	rd.offsets[i] = tail
	return rd.out.gap(i, from, tail)
}

// send sends one chunk of stream i, or the gap that is in its place.
func (rd *reader) send(i int, end int64) error {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	p := (*buffer)[:min(int64(frameHead)+end-rd.offsets[i], chunk)]
	n, at, err := rd.p.streams[i].ReadAt(p[frameHead:], rd.offsets[i])
	if err != nil {
		return err
	}
	if at = min(at, end); at > rd.offsets[i] {
		from := rd.offsets[i]
		rd.offsets[i] = at
		if err := rd.out.gap(i, from, at); err != nil {
			return err
		}
	}
	if n = int(min(int64(n), end-at)); n == 0 {
		return nil
	}
	rd.offsets[i] += int64(n)
	putHead(p, byte(i+1), at, n)
	_, err = rd.out.w.Write(p[:frameHead+n])
	return err
}

// wait waits for more bytes or the exit. What was written is flushed before a long wait.
func (rd *reader) wait(more [2]<-chan struct{}) error {
	if rd.head >= 0 { // nothing beyond the head goes out before the exit
		for i := range more {
			if rd.offsets[i] >= rd.head {
				more[i] = nil
			}
		}
	}
	if rd.fresh {
		rd.fresh = false
		if woken, err := rd.sleep(more, settle); woken || err != nil {
			return err
		}
	}
	if err := rd.out.flush(); err != nil {
		return err
	}
	for {
		woken, err := rd.sleep(more, keepAlive)
		if woken || err != nil {
			return err
		}
		if err := rd.out.write(frameAlive, 0, nil); err != nil {
			return err
		}
		if err := rd.out.flush(); err != nil {
			return err
		}
	}
}

func (rd *reader) sleep(more [2]<-chan struct{}, d time.Duration) (woken bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-more[0]:
		return true, nil
	case <-more[1]:
		return true, nil
	case <-rd.p.exited:
		return true, nil
	case <-rd.ctx.Done():
		return false, rd.ctx.Err()
	case <-timer.C:
		return false, nil
	}
}
