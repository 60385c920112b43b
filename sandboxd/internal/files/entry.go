package files

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"unicode/utf8"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/users"
)

// entry is what stat and list say of one file.
type entry struct {
	Path      any         `json:"path,omitempty"`
	PathB64   string      `json:"path_b64,omitempty"`
	Name      any         `json:"name,omitempty"`
	NameB64   string      `json:"name_b64,omitempty"`
	Type      string      `json:"type"`
	Size      int64       `json:"size"`
	Blocks    int64       `json:"blocks"` // of 512 bytes
	Mode      uint32      `json:"mode"`
	UID       uint32      `json:"uid"`
	GID       uint32      `json:"gid"`
	User      string      `json:"user"`
	Group     string      `json:"group"`
	Mtime     json.Number `json:"mtime"`
	Target    any         `json:"target,omitempty"`
	TargetB64 string      `json:"target_b64,omitempty"`
	Error     string      `json:"error,omitempty"` // the errno, of a folder that cannot be read
}

// null stands for a member that is there and empty.
var null = json.RawMessage("null")

// text splits raw bytes into what JSON can say and what needs base64.
func text(raw string) (plain any, b64 string) {
	if utf8.ValidString(raw) {
		return raw, ""
	}
	return nil, base64.StdEncoding.EncodeToString([]byte(raw))
}

// shown is the absolute path that an answer gives for name: without "." and doubled
// slashes, but with "..", which after a symlink is not what the text makes of it.
func (h *Handler) shown(name string) string {
	var out strings.Builder
	for _, part := range strings.Split(h.root.Abs(name), "/") {
		if part != "" && part != "." {
			out.WriteString("/" + part)
		}
	}
	if out.Len() == 0 {
		return "/"
	}
	return out.String()
}

// kind is the word for the type of a file.
func kind(st *syscall.Stat_t) string {
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return "file"
	case syscall.S_IFDIR:
		return "dir"
	case syscall.S_IFLNK:
		return "symlink"
	case syscall.S_IFIFO:
		return "fifo"
	case syscall.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// errnoOf is why what is of this kind cannot be read or written as a file.
func errnoOf(kind string) syscall.Errno {
	if kind == "dir" {
		return syscall.EISDIR
	}
	return syscall.EINVAL
}

// mtime is the time of last modification in seconds, to the nanosecond.
func mtime(st *syscall.Stat_t) json.Number {
	sec, nsec := int64(st.Mtim.Sec), int64(st.Mtim.Nsec)
	if sec < 0 && nsec > 0 {
		return json.Number(fmt.Sprintf("%f", float64(sec)+float64(nsec)/1e9))
	}
	return json.Number(fmt.Sprintf("%d.%09d", sec, nsec))
}

// names remembers the names of owners while one request lasts.
type names struct {
	db    users.Database
	known map[[2]uint32][2]string
}

func (h *Handler) names() *names {
	return &names{h.deps.Users, map[[2]uint32][2]string{}}
}

func (n *names) find(uid, gid uint32) (user, group string) {
	key := [2]uint32{uid, gid}
	found, ok := n.known[key]
	if !ok {
		found[0], found[1] = n.db.Find(uid, gid)
		n.known[key] = found
	}
	return found[0], found[1]
}

// newEntry describes what st says of name in dir.
func (n *names) newEntry(path string, dir int, name string, st *syscall.Stat_t) *entry {
	e := &entry{Type: kind(st), Size: st.Size, Blocks: st.Blocks, Mode: st.Mode & 0o7777,
		UID: st.Uid, GID: st.Gid, Mtime: mtime(st), Target: null}
	e.Path, e.PathB64 = text(path)
	e.Name, e.NameB64 = text(name)
	e.User, e.Group = n.find(st.Uid, st.Gid)
	if e.Type == "symlink" {
		e.Target, e.TargetB64 = linkText(dir, name)
	}
	return e
}

// linkText reads a symlink; one that cannot be read, or leads by magic, says nothing.
func linkText(dir int, name string) (plain any, b64 string) {
	target, err := rootfs.Readlinkat(dir, name)
	if err != nil {
		return null, ""
	}
	return text(target)
}
