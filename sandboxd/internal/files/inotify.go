package files

import (
	"encoding/binary"
	"net/http"
	"os"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

const watchMask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_DELETE |
	syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF

// maxWatchDepth bounds the folders that are open while a tree is being watched.
const maxWatchDepth = 256

// watcher is one inotify instance with the folders it watches.
type watcher struct {
	file *os.File
	fd   int // of file, whose own Fd may make it block
	deep bool
	// paths are the watched folders by descriptor of the watch, from the start: "" is
	// the start itself, others end in a slash.
	paths map[int32]string
	moved *change // the first half of a move, waiting for the second
}

// notice is one record of inotify.
type notice struct {
	watch  int32
	mask   uint32
	cookie uint32
	name   string
}

func newWatcher(deep bool) (*watcher, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &watcher{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, deep: deep, paths: map[int32]string{}}, nil
}

// add watches an open file or folder. It goes by /proc, as the call takes only a path,
// and a path could lead elsewhere by now.
func (w *watcher) add(fd int, path string) error {
	watch, err := syscall.InotifyAddWatch(w.fd, rootfs.ProcPath(fd), watchMask)
	if err == syscall.ENOSPC {
		return &wire.Problem{Status: http.StatusInsufficientStorage, Code: "file_error", Errno: "ENOSPC", Field: "path",
			Reason: "too_many_watches", Detail: "the kernel's limit of inotify watches is reached",
			Hint: "watch a smaller tree, or raise fs.inotify.max_user_watches"}
	}
	if err == nil {
		w.paths[int32(watch)] = path
	}
	return err
}

// addTree watches the open folder dir, and with deep all below it. found is told what
// is there, after its folder is watched: nothing falls between.
func (w *watcher) addTree(dir int, path string, found func(path string)) error {
	if err := w.add(dir, path); err != nil || !w.deep {
		return err
	}
	if strings.Count(path, "/") > maxWatchDepth {
		return syscall.ENAMETOOLONG
	}
	fd, err := rootfs.Openat(dir, ".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	items, err := readFolder(fd)
	if err != nil {
		return err
	}
	for _, it := range items {
		if looksTemp(it.name) {
			continue
		}
		found(path + it.name)
		if !isFolder(fd, it) {
			continue
		}
		err := w.addSub(fd, it.name, path+it.name+"/", found)
		if ignoreVanished(err) != nil && err != syscall.EACCES && err != syscall.EXDEV {
			return err
		}
	}
	return nil
}

func (w *watcher) addSub(dir int, name, path string, found func(path string)) error {
	st, err := rootfs.Fstat(dir)
	if err != nil {
		return err
	}
	sub, err := openSub(dir, name, st.Dev)
	if err != nil {
		return err
	}
	defer closeFD(sub)
	return w.addTree(sub, path, found)
}

// notices reads struct inotify_event: wd 4, mask 4, cookie 4, len 4, name.
func notices(records []byte) []notice {
	var out []notice
	for len(records) >= syscall.SizeofInotifyEvent {
		size := binary.NativeEndian.Uint32(records[12:])
		name := string(records[16 : 16+size])
		out = append(out, notice{watch: int32(binary.NativeEndian.Uint32(records)),
			mask: binary.NativeEndian.Uint32(records[4:]), cookie: binary.NativeEndian.Uint32(records[8:]),
			name: strings.TrimRight(name, "\x00")})
		records = records[16+size:]
	}
	return out
}

// rename puts a folder that moved, with those below it, under its new path. Only
// folders that are still inside keep their watch.
func (w *watcher) rename(from, to string) {
	for watch, path := range w.paths {
		if rest, below := strings.CutPrefix(path, from+"/"); below {
			w.paths[watch] = to + "/" + rest
		}
	}
}

// forget ends the watches of a folder that left the tree.
func (w *watcher) forget(path string) {
	for watch, watched := range w.paths {
		if strings.HasPrefix(watched, path+"/") {
			_, _ = syscall.InotifyRmWatch(w.fd, uint32(watch))
			delete(w.paths, watch)
		}
	}
}
