package files

import (
	"syscall"

	"orchard/sandboxd/internal/rootfs"
)

// maxNesting bounds the folders held open while a tree is removed; deeper ones are
// first moved up, so that a tree of any depth can be removed.
const maxNesting = 64

func (h *Handler) remove(q query) (any, error) {
	recursive, err := q.flag("recursive", false)
	if err != nil {
		return nil, err
	}
	missingOK, err := q.flag("missing_ok", false)
	if err != nil {
		return nil, err
	}
	err = h.removeAt(q.name(), recursive)
	if err == syscall.ENOENT && missingOK {
		return map[string]bool{"removed": false}, nil
	}
	return map[string]bool{"removed": true}, err
}

func (h *Handler) removeAt(path string, recursive bool) error {
	place, st, err := h.located(path)
	if err != nil {
		return err
	}
	defer place.Close()
	folder := kind(&st) == "dir"
	if folder && recursive {
		return removeTree(place.Dir, place.Base)
	}
	return rootfs.Unlinkat(place.Dir, place.Base, folder)
}

// removeTree removes the folder name in dir and all below it, and never follows a
// symlink. It goes on after an error, and answers the first one.
func removeTree(dir int, name string) error {
	for try := 0; ; try++ {
		first := emptyFolder(dir, name, -1, 0)
		err := rootfs.Unlinkat(dir, name, true)
		switch {
		case err == nil || (err == syscall.ENOENT && try > 0):
			return nil
		case first != nil:
			return first
		case err != syscall.ENOTEMPTY || try == 2000: // filled again, or folders moved up
			return err
		}
	}
}

// emptyFolder removes what is in the folder name. top is the folder that the removal
// began at, -1 if it is this one.
func emptyFolder(dir int, name string, top, depth int) error {
	fd, err := rootfs.Openat(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if top < 0 {
		top = fd
	}
	items, err := readFolder(fd)
	if err != nil {
		return err
	}
	var first error
	for _, item := range items {
		if err := removeItem(fd, item.name, top, depth); err != nil && err != syscall.ENOENT && first == nil {
			first = err
		}
	}
	return first
}

func removeItem(dir int, name string, top, depth int) error {
	err := rootfs.Unlinkat(dir, name, false)
	if err != syscall.EISDIR && err != syscall.EPERM { // EPERM: what POSIX has for a folder
		return err
	}
	if st, statErr := rootfs.Statat(dir, name); statErr != nil || kind(&st) != "dir" {
		return err
	}
	if depth >= maxNesting {
		return rootfs.Renameat(dir, name, top, tempName())
	}
	if err := emptyFolder(dir, name, top, depth+1); err != nil {
		return err
	}
	return rootfs.Unlinkat(dir, name, true)
}
