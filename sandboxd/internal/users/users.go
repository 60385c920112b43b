// Package users reads the sandbox's own /etc/passwd and /etc/group, without cgo, and
// without trusting them: they may be missing, huge, or no files at all.
package users

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// fileLimit bounds how much of a user database is read.
const fileLimit = 4 << 20

// Identity is whom a command runs as, or a file belongs to.
type Identity struct {
	UID, GID uint32
	Groups   []uint32 // supplementary, without GID
	Name     string   // the number as a word, if the database has no name
	Home     string   // never empty
	Shell    string   // "" if unknown
}

// UnknownError says which part of a user specification names nobody.
type UnknownError struct{ Spec, Detail string }

func (e *UnknownError) Error() string { return fmt.Sprintf("user %q: %s", e.Spec, e.Detail) }

// Database is where the two files are; the zero value is the sandbox's own.
type Database struct{ Passwd, Group string }

type account struct {
	name, home, shell string
	uid, gid          uint32
}

type group struct {
	name    string
	gid     uint32
	members []string
}

// Lookup resolves "name", "uid", "name:group", "uid:gid" as container runtimes do: a
// number need not be in the database (its group is then 0), a name must be. An empty
// spec is the identity of this very process.
func (d Database) Lookup(spec string) (Identity, error) {
	if spec == "" {
		return d.own(), nil
	}
	userPart, groupPart, withGroup := strings.Cut(spec, ":")
	found, err := d.user(spec, userPart)
	if err != nil {
		return Identity{}, err
	}
	groups := d.groups()
	id := Identity{UID: found.uid, GID: found.gid, Name: found.name, Home: found.home, Shell: found.shell}
	if withGroup {
		gid, ok := findGroup(groups, groupPart)
		if !ok {
			return Identity{}, &UnknownError{spec, fmt.Sprintf("no group %q in /etc/group", groupPart)}
		}
		id.GID = gid
		return id, nil
	}
	id.Groups = supplementary(groups, found.name, id.GID)
	return id, nil
}

// Find is the reverse: the names of a user and a group, "" where there are none.
func (d Database) Find(uid, gid uint32) (user, groupName string) {
	for _, a := range d.accounts() {
		if a.uid == uid {
			user = a.name
			break
		}
	}
	for _, g := range d.groups() {
		if g.gid == gid {
			groupName = g.name
			break
		}
	}
	return user, groupName
}

func (d Database) own() Identity {
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	found := d.byNumber(uid)
	id := Identity{UID: uid, GID: gid, Name: found.name, Home: found.home, Shell: found.shell}
	if uid == 0 {
		id.Groups = supplementary(d.groups(), found.name, gid)
		return id
	}
	held, _ := os.Getgroups()
	for _, g := range held {
		if uint32(g) != gid {
			id.Groups = append(id.Groups, uint32(g))
		}
	}
	return id
}

func (d Database) user(spec, part string) (account, error) {
	for _, a := range d.accounts() {
		if a.name == part {
			return a, nil
		}
	}
	n, err := strconv.ParseUint(part, 10, 32)
	if err != nil || n == 1<<32-1 {
		return account{}, &UnknownError{spec, fmt.Sprintf("no user %q in /etc/passwd", part)}
	}
	return d.byNumber(uint32(n)), nil
}

func (d Database) byNumber(uid uint32) account {
	for _, a := range d.accounts() {
		if a.uid == uid {
			return a
		}
	}
	return account{name: strconv.FormatUint(uint64(uid), 10), home: "/", uid: uid}
}

func findGroup(groups []group, part string) (uint32, bool) {
	for _, g := range groups {
		if g.name == part {
			return g.gid, true
		}
	}
	n, err := strconv.ParseUint(part, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

func supplementary(groups []group, name string, gid uint32) []uint32 {
	var out []uint32
	for _, g := range groups {
		if g.gid == gid {
			continue
		}
		for _, m := range g.members {
			if m == name {
				out = append(out, g.gid)
				break
			}
		}
	}
	return out
}

func (d Database) accounts() []account {
	var out []account
	for _, f := range records(orDefault(d.Passwd, "/etc/passwd"), 7) {
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil || f[0] == "" {
			continue
		}
		home := f[5]
		if !strings.HasPrefix(home, "/") {
			home = "/"
		}
		out = append(out, account{name: f[0], home: home, shell: f[6], uid: uint32(uid), gid: uint32(gid)})
	}
	return out
}

func (d Database) groups() []group {
	var out []group
	for _, f := range records(orDefault(d.Group, "/etc/group"), 4) {
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || f[0] == "" {
			continue
		}
		out = append(out, group{name: f[0], gid: uint32(gid), members: strings.Split(f[3], ",")})
	}
	return out
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
