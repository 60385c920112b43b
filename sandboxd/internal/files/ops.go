package files

import (
	"errors"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

func (h *Handler) stat(q query) (any, error) {
	follow, err := q.flag("follow", true)
	if err != nil {
		return nil, err
	}
	return h.entryAt(q.name(), follow)
}

// entryAt describes the file at path.
func (h *Handler) entryAt(path string, follow bool) (*entry, error) {
	flags := rootfs.OPath
	if !follow {
		flags |= syscall.O_NOFOLLOW
	}
	fd, err := h.root.Open(path, flags)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	st, err := rootfs.Fstat(fd)
	if err != nil {
		return nil, err
	}
	e := h.names().newEntry(h.shown(path), fd, "", &st)
	e.Name, e.NameB64 = text(lastName(path))
	return e, nil
}

// lastName is the last component of a path, "/" for the root.
func lastName(path string) string {
	end := len(path)
	for end > 0 && path[end-1] == '/' {
		end--
	}
	start := end
	for start > 0 && path[start-1] != '/' {
		start--
	}
	if start == end {
		return "/"
	}
	return path[start:end]
}

func (h *Handler) mkdir(q query) (any, error) {
	parents, err := q.flag("parents", true)
	if err != nil {
		return nil, err
	}
	mode, err := q.mode()
	if err != nil {
		return nil, err
	}
	if mode == nil {
		plain := uint32(dirMode)
		mode = &plain
	}
	o, err := h.owner(q)
	if err != nil {
		return nil, err
	}
	if parents {
		err = h.makeAll(h.root.Abs(q.name()), *mode, o)
	} else {
		err = h.makeOne(q.name(), *mode, o)
	}
	if err != nil {
		return nil, err
	}
	e, err := h.entryAt(q.name(), true)
	if err == nil && e.Type != "dir" {
		return nil, syscall.EEXIST
	}
	return e, err
}

func (h *Handler) makeOne(path string, mode uint32, o owner) error {
	place, err := h.root.Parent(path, false)
	if err != nil {
		return err
	}
	defer place.Close()
	if place.Base == "." {
		return syscall.EEXIST
	}
	return makeDir(place.Dir, place.Base, mode, o)
}

// located is the place of a name that is to be moved or removed: not ".", and a folder
// if the path ends in a slash.
func (h *Handler) located(path string) (rootfs.Place, syscall.Stat_t, error) {
	place, err := h.root.Parent(path, false)
	if err != nil {
		return place, syscall.Stat_t{}, err
	}
	st, err := rootfs.Statat(place.Dir, place.Base)
	switch {
	case place.Base == ".":
		err = syscall.EBUSY
	case err == nil && place.Slash && kind(&st) != "dir":
		err = syscall.ENOTDIR
	}
	if err != nil {
		place.Close()
	}
	return place, st, err
}

func (h *Handler) move(q query) (any, error) {
	to, err := q.path("to")
	if err != nil {
		return nil, err
	}
	from, st, err := h.located(q.name())
	if err != nil {
		return nil, err
	}
	defer from.Close()
	target, err := h.root.Parent(to, false)
	if err != nil {
		return nil, wire.FileError(to, err)
	}
	defer target.Close()
	switch {
	case target.Base == ".":
		err = syscall.EBUSY
	case target.Slash && kind(&st) != "dir":
		err = syscall.ENOTDIR
	default:
		err = rootfs.Renameat(from.Dir, from.Base, target.Dir, target.Base)
	}
	if err == syscall.EXDEV {
		return nil, otherFileSystem(to)
	}
	if err != nil {
		return nil, wire.FileError(to, err)
	}
	return h.entryAt(to, false)
}

func otherFileSystem(to string) error {
	var p *wire.Problem
	if errors.As(wire.FileError(to, syscall.EXDEV), &p) {
		p.Hint = "a rename stays on one file system, and overlayfs may not rename a folder of the image: run mv, which copies"
	}
	return p
}

func (h *Handler) chmod(q query) (any, error) {
	mode, err := q.mode()
	if err != nil {
		return nil, err
	}
	o, err := h.owner(q)
	if err != nil {
		return nil, err
	}
	if mode == nil && !o.named {
		return nil, wire.Invalid("mode", "a mode or a user is due")
	}
	fd, err := h.root.Open(q.name(), rootfs.OPath)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	if o.named {
		if err := o.give(fd); err != nil {
			return nil, err
		}
	}
	if mode != nil {
		if err := rootfs.Chmod(fd, *mode); err != nil {
			return nil, err
		}
	}
	return h.entryAt(q.name(), true)
}

func (h *Handler) symlink(q query) (any, error) {
	target, err := q.path("target")
	if err != nil {
		return nil, err
	}
	o, err := h.owner(q)
	if err != nil {
		return nil, err
	}
	place, err := h.root.Parent(q.name(), false)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	if place.Slash {
		return nil, syscall.EEXIST
	}
	if err := makeLink(target, place.Dir, place.Base, o); err != nil {
		return nil, err
	}
	return h.entryAt(q.name(), false)
}

// makeLink makes a symlink that belongs to o.
func makeLink(target string, dir int, name string, o owner) error {
	if err := rootfs.Symlinkat(target, dir, name); err != nil {
		return err
	}
	fd, err := rootfs.Openat(dir, name, rootfs.OPath|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return o.give(fd)
}
