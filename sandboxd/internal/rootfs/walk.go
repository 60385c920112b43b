package rootfs

import (
	"strings"
	"syscall"
)

// maxDepth bounds the descriptors that one resolution by hand holds.
const maxDepth = 512

// walker resolves a path component by component, where openat2 cannot be had. It never
// opens through a symlink: it reads it and goes on from there, so a magic link is only
// text. ".." goes back to the descriptor it came from, so a rename cannot lead it out.
type walker struct {
	dirs  []int // dirs[0] is the start and is not ours to close
	rest  []string
	links int
	how   uint64
}

func walk(dir int, name string, flags int, how uint64) (int, error) {
	w := &walker{dirs: []int{dir}, how: how}
	defer w.close()
	if err := w.push(name); err != nil {
		return 0, err
	}
	for len(w.rest) > 1 {
		if err := w.step(w.next()); err != nil {
			return 0, err
		}
	}
	return w.last(flags)
}

func (w *walker) close() {
	for _, fd := range w.dirs[1:] {
		_ = syscall.Close(fd)
	}
}

func (w *walker) top() int { return w.dirs[len(w.dirs)-1] }

func (w *walker) next() string {
	name := w.rest[0]
	w.rest = w.rest[1:]
	return name
}

// push puts the components of a path before what is left; an absolute one starts anew.
func (w *walker) push(name string) error {
	if len(name) >= 4096 {
		return syscall.ENAMETOOLONG
	}
	if strings.HasPrefix(name, "/") {
		if w.how&resolveBeneath != 0 {
			return syscall.EXDEV
		}
		w.close()
		w.dirs = w.dirs[:1]
	}
	var parts []string
	for _, part := range strings.Split(name, "/") {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 || strings.HasSuffix(name, "/") {
		parts = append(parts, ".")
	}
	w.rest = append(parts, w.rest...)
	return nil
}

// step goes into the folder that name is, or follows the symlink that it is.
func (w *walker) step(name string) error {
	switch name {
	case ".":
		return nil
	case "..":
		return w.up()
	}
	fd, err := Openat(w.top(), name, OPath|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	st, err := Fstat(fd)
	switch {
	case err != nil:
	case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		w.dirs = append(w.dirs, fd)
		if len(w.dirs) > maxDepth {
			return syscall.ENAMETOOLONG
		}
		return nil
	case st.Mode&syscall.S_IFMT == syscall.S_IFLNK:
		err = w.follow(fd)
	default:
		err = syscall.ENOTDIR
	}
	_ = syscall.Close(fd)
	return err
}

func (w *walker) up() error {
	if len(w.dirs) > 1 {
		_ = syscall.Close(w.top())
		w.dirs = w.dirs[:len(w.dirs)-1]
		return nil
	}
	if w.how&resolveBeneath != 0 {
		return syscall.EXDEV
	}
	return nil
}

func (w *walker) follow(link int) error {
	if w.how&resolveNoSymlinks != 0 {
		return syscall.ELOOP
	}
	if w.links++; w.links > maxLinks {
		return syscall.ELOOP
	}
	target, err := Readlinkat(link, "")
	if err != nil {
		return err
	}
	return w.push(target)
}

// last opens the last component, following it while it is a symlink, unless told not to.
func (w *walker) last(flags int) (int, error) {
	for {
		for len(w.rest) > 1 {
			if err := w.step(w.next()); err != nil {
				return 0, err
			}
		}
		name := w.next()
		if name == ".." {
			if err := w.up(); err != nil {
				return 0, err
			}
			name = "."
		}
		nofollow := flags&syscall.O_NOFOLLOW != 0
		target, err := "", error(syscall.EINVAL)
		if name != "." && !nofollow {
			target, err = w.linkAt(name)
		}
		if target == "" && err != syscall.ELOOP {
			return Openat(w.top(), name, flags|syscall.O_NOFOLLOW, 0)
		}
		if err != nil {
			return 0, err
		}
		if err := w.push(target); err != nil {
			return 0, err
		}
	}
}

// linkAt reads the symlink name, counted against the limit.
func (w *walker) linkAt(name string) (string, error) {
	target, err := Readlinkat(w.top(), name)
	if err != nil {
		return "", err
	}
	if w.links++; w.links > maxLinks || w.how&resolveNoSymlinks != 0 {
		return "", syscall.ELOOP
	}
	return target, nil
}
