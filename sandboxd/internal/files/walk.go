package files

import (
	"context"
	"path"
	"sort"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// maxHeld bounds the folders that a walk holds open; those above are opened again.
const maxHeld = 64

// node is what a walk has come to.
type node struct {
	rel  string // raw path from the start of the walk
	name string
	dir  int // the folder that holds it; open during the visit only
	stat syscall.Stat_t
	err  error // why a folder cannot be read

	xattrs map[string]string // as PAX records, where they are wanted
}

// walk visits a tree in the order of raw paths, without following symlinks. What
// vanishes meanwhile is left out. It holds the names of the folders on its way only.
type walk struct {
	h       *Handler
	ctx     context.Context
	start   int // the folder it begins at
	deep    bool
	exclude []string
	visit   func(n *node) error
}

// item is a name in a folder.
type item struct {
	name  string
	dtype byte
}

// readFolder reads the names in an open folder, in no order.
func readFolder(fd int) ([]item, error) {
	var items []item
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for {
		n, err := syscall.ReadDirent(fd, buf[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return items, err
		}
		items = appendItems(items, buf[:n])
	}
}

// appendItems reads struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name.
func appendItems(items []item, records []byte) []item {
	for len(records) > 19 {
		size := int(records[16]) | int(records[17])<<8
		name := string(records[19:size])
		if end := strings.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if name != "." && name != ".." {
			items = append(items, item{name, records[18]})
		}
		records = records[size:]
	}
	return items
}

// run walks the whole tree.
func (w *walk) run() error {
	fd, err := rootfs.Openat(w.start, ".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return w.folder(fd, "", 0)
}

// step is one thing to do in a folder: visit a name, or go into it. "a-b" comes between
// "a" and "a/x" in the order of raw paths, so the two are apart.
type step struct {
	key  string
	into bool
}

func (w *walk) steps(fd int, rel string) ([]step, error) {
	items, err := readFolder(fd)
	steps := make([]step, 0, len(items))
	for _, it := range items {
		if w.h.isTemp(it.name) || excluded(w.exclude, rel+it.name, it.name) {
			continue
		}
		steps = append(steps, step{it.name, false})
		if w.deep && isFolder(fd, it) {
			steps = append(steps, step{it.name + "/", true})
		}
	}
	sort.Slice(steps, func(i, j int) bool { return steps[i].key < steps[j].key })
	return steps, err
}

func isFolder(fd int, it item) bool {
	if it.dtype != syscall.DT_UNKNOWN {
		return it.dtype == syscall.DT_DIR
	}
	st, err := rootfs.Statat(fd, it.name)
	return err == nil && kind(&st) == "dir"
}

// folder walks the open folder fd, which it closes; rel ends in a slash or is empty.
func (w *walk) folder(fd int, rel string, depth int) error {
	defer func() { closeFD(fd) }()
	here, err := rootfs.Fstat(fd)
	if err != nil {
		return err
	}
	var steps []step
	err = w.h.disk.run(func() (err error) { steps, err = w.steps(fd, rel); return err })
	if err != nil {
		return ignoreVanished(err)
	}
	for _, s := range steps {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if !s.into {
			if err := w.look(fd, rel, s.key, here.Dev); err != nil {
				return err
			}
			continue
		}
		if fd, err = w.descend(fd, rel, s.key, depth, here.Dev); err != nil || fd < 0 {
			return err
		}
	}
	return nil
}

func (w *walk) look(fd int, rel, name string, dev uint64) error {
	n := &node{rel: rel + name, name: name, dir: fd}
	err := w.h.disk.run(func() (err error) {
		n.stat, err = rootfs.Statat(fd, name)
		if err != nil || !w.deep || kind(&n.stat) != "dir" {
			return err
		}
		sub, failed := openSub(fd, name, dev)
		if failed == nil {
			closeFD(sub)
		}
		n.err = failed
		return nil
	})
	if err != nil {
		return ignoreVanished(err)
	}
	return w.visit(n)
}

// openSub opens a folder of the open folder dir, which is on dev. It does not go into
// proc, sysfs and their like from outside: EXDEV.
func openSub(dir int, name string, dev uint64) (int, error) {
	sub, err := rootfs.Openat(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	st, err := rootfs.Fstat(sub)
	if err == nil && st.Dev != dev && rootfs.OnKernelFS(sub) {
		err = syscall.EXDEV
	}
	if err != nil {
		closeFD(sub)
	}
	return sub, err
}

// descend walks the folder that key ("name/") names in fd. It gives fd back, or what
// fd was opened again as, or -1 if it is gone.
func (w *walk) descend(fd int, rel, key string, depth int, dev uint64) (int, error) {
	sub, err := openSub(fd, strings.TrimSuffix(key, "/"), dev)
	if err != nil {
		return fd, nil // gone, or said to be unreadable by look
	}
	if depth < maxHeld {
		return fd, w.folder(sub, rel+key, depth+1)
	}
	closeFD(fd)
	if err := w.folder(sub, rel+key, depth+1); err != nil {
		return -1, err
	}
	fd, err = rootfs.Reopen(w.start, rel, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return -1, ignoreVanished(err)
	}
	return fd, nil
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = syscall.Close(fd)
	}
}

func ignoreVanished(err error) error {
	if err == syscall.ENOENT || err == syscall.ENOTDIR || err == syscall.ELOOP {
		return nil
	}
	return err
}

// excludes reads the exclude patterns of a query. One without a slash is a glob for the
// last component, at any depth; one with a slash is a glob for the whole path from the
// start. What matches is left out with all that is below it.
func (q query) excludes() ([]string, error) {
	var out []string
	for _, pattern := range q.values["exclude"] {
		inner := strings.Contains(strings.TrimSuffix(pattern, "/"), "/")
		trimmed := strings.Trim(pattern, "/")
		if _, err := path.Match(trimmed, ""); err != nil || trimmed == "" {
			return nil, wire.Invalid("exclude", "a glob is due, such as *.pyc or build/out")
		}
		if inner {
			trimmed = "/" + trimmed
		}
		out = append(out, trimmed)
	}
	return out, nil
}

func excluded(patterns []string, rel, name string) bool {
	for _, pattern := range patterns {
		subject := name
		if strings.HasPrefix(pattern, "/") {
			subject = "/" + rel
		}
		if ok, _ := path.Match(pattern, subject); ok || pattern == subject {
			return true
		}
	}
	return false
}

// subtree returns what a request for a whole tree names: the patterns to leave out, and its folder, open; the caller
// closes it.
func (h *Handler) subtree(q query) (exclude []string, start int, err error) {
	if exclude, err = q.excludes(); err != nil {
		return nil, -1, err
	}
	start, err = h.root.Open(q.name(), rootfs.OPath|syscall.O_DIRECTORY)
	return exclude, start, err
}
