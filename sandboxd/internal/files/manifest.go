package files

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"syscall"
)

// ahead is how many files a manifest hashes or holds ready beyond the line being written.
const ahead = 64

// manifestLine is what a manifest says of one file.
type manifestLine struct {
	Path      any         `json:"path,omitempty"`
	PathB64   string      `json:"path_b64,omitempty"`
	Type      string      `json:"type"`
	Mode      uint32      `json:"mode"`
	Size      int64       `json:"size"`
	Mtime     json.Number `json:"mtime"`
	UID       uint32      `json:"uid"`
	GID       uint32      `json:"gid"`
	Target    any         `json:"target,omitempty"`
	TargetB64 string      `json:"target_b64,omitempty"`
	SHA256    *string     `json:"sha256"`
	Error     string      `json:"error,omitempty"`
}

// job is a line that may still wait for its hash.
type job struct {
	line   manifestLine
	gone   bool // vanished meanwhile: no line
	hashed chan struct{}
}

// surveyor makes a manifest: the walk puts jobs in a queue in their order, hashes run
// beside it, a bounded number, and emit writes the lines in the order of the queue.
type surveyor struct {
	h     *Handler
	ctx   context.Context
	queue chan *job
}

func (h *Handler) manifest(w http.ResponseWriter, r *http.Request, q query) error {
	exclude, start, err := h.subtree(q)
	if err != nil {
		return err
	}
	defer closeFD(start)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	s := &surveyor{h: h, ctx: ctx, queue: make(chan *job, ahead)}
	out, emitted := newLines(w), make(chan error, 1)
	go func() { emitted <- s.emit(out, cancel) }()
	err = (&walk{h: h, ctx: ctx, start: start, deep: true, exclude: exclude, visit: s.visit}).run()
	close(s.queue)
	if emitErr := <-emitted; emitErr != nil {
		return emitErr
	}
	return out.end(q.name(), false, err)
}

// emit writes the lines of the queue until it is closed. After an error it only waits
// for what is under way, so that nothing outlives the request.
func (s *surveyor) emit(out *lines, cancel func()) error {
	var first error
	for j := range s.queue {
		<-j.hashed
		if j.gone || first != nil {
			continue
		}
		if first = out.put(&j.line); first != nil {
			cancel()
		}
	}
	return first
}

func (s *surveyor) visit(n *node) error {
	st := &n.stat
	j := &job{hashed: make(chan struct{})}
	j.line = manifestLine{Type: kind(st), Mode: st.Mode & 0o7777, Mtime: mtime(st),
		UID: st.Uid, GID: st.Gid, Target: null, Error: errnoName(n.err)}
	j.line.Path, j.line.PathB64 = text(n.rel)
	switch j.line.Type {
	case "file":
		s.startHash(j, n)
	case "symlink":
		j.line.Size = st.Size
		j.line.Target, j.line.TargetB64 = linkText(n.dir, n.name)
	case "dir":
	default:
		j.line.Type = "other"
	}
	if j.line.Type != "file" {
		close(j.hashed)
	}
	s.queue <- j
	return nil
}

// startHash opens the file while its folder is open, and hashes it beside the walk.
func (s *surveyor) startHash(j *job, n *node) {
	j.line.Size = n.stat.Size
	f, err := s.h.openNode(n)
	if err != nil {
		j.line.Error = errnoName(err)
		j.gone = j.line.Error == "" || ignoreVanished(err) == nil
		close(j.hashed)
		return
	}
	st := n.stat
	go func() {
		defer close(j.hashed)
		defer f.Close()
		if err := s.h.hashers.run(func() error { return s.hash(j, f, &st) }); err != nil {
			j.line.SHA256, j.line.Error = nil, errnoName(err)
		}
	}()
}

func (s *surveyor) hash(j *job, f *os.File, st *syscall.Stat_t) (err error) {
	var sum string
	if holes(st) > holesInDigest {
		j.line.Size = st.Size
		sum, err = s.h.sparseDigest(s.ctx, f, st.Size)
		sum = "sparse:" + sum
	} else {
		sum, j.line.Size, err = s.h.digest(s.ctx, f)
	}
	j.line.SHA256 = &sum
	return err
}
