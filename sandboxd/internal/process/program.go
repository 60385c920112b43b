package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/users"
	"orchard/sandboxd/internal/wire"
)

// usualShells are tried when nobody named a shell and PATH holds none.
var usualShells = []string{"/bin/sh", "/usr/bin/sh", "/busybox/sh", "/run/current-system/sw/bin/sh"}

// findProgram resolves argv[0] as execvp would: a name with a slash is a path from cwd,
// any other is searched on path. Relative results stay relative, for the program sees them.
func findProgram(name, path, cwd string, who users.Identity) (string, *wire.Problem) {
	if strings.Contains(name, "/") {
		return name, checkProgram(name, absolute(name, cwd), who)
	}
	var denied *wire.Problem
	for _, folder := range filepath.SplitList(path) {
		candidate := absolute(filepath.Join(orDot(folder), name), cwd)
		problem := checkProgram(name, candidate, who)
		if problem == nil {
			return candidate, nil
		}
		if problem.Reason != "program_not_found" && denied == nil {
			denied = problem
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", wire.NotStarted("program_not_found", fmt.Sprintf("no program %q on the PATH %q", name, path), "")
}

// findShell resolves the shell: the one named, else the configured one, else a usual one.
func findShell(named, configured, path, cwd string, who users.Identity) (string, *wire.Problem) {
	name := named
	if name == "" {
		name = configured
	}
	program, problem := findProgram(name, path, cwd, who)
	if problem == nil {
		return program, nil
	}
	if problem.Reason != "program_not_found" {
		return "", problem
	}
	if named == "" {
		for _, usual := range usualShells {
			if checkProgram(usual, usual, who) == nil {
				return usual, nil
			}
		}
	}
	return "", wire.NotStarted("no_shell", fmt.Sprintf("no shell %q on the PATH %q", name, path),
		"name another by shell_path, or run the program itself by argv")
}

// checkProgram tells why file cannot be executed by who; name is what the caller wrote.
func checkProgram(name, file string, who users.Identity) *wire.Problem {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ELOOP):
		return wire.NotStarted("permission", fmt.Sprintf("%q: %v", name, err), "")
	case err != nil:
		return wire.NotStarted("program_not_found", fmt.Sprintf("no program %q", name), "")
	case info.IsDir():
		return wire.NotStarted("not_executable", fmt.Sprintf("%q is a folder", name), "")
	case !mayExecute(info, who):
		return wire.NotStarted("permission",
			fmt.Sprintf("%q may not be executed by user %q (mode %04o)", name, who.Name, info.Mode().Perm()), "")
	}
	return nil
}

// mayExecute looks at the mode bits alone; the kernel has the last word.
func mayExecute(info fs.FileInfo, who users.Identity) bool {
	mode := info.Mode().Perm()
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || who.UID == 0 {
		return mode&0o111 != 0
	}
	if owner.Uid == who.UID {
		return mode&0o100 != 0
	}
	if owner.Gid == who.GID {
		return mode&0o010 != 0
	}
	for _, gid := range who.Groups {
		if owner.Gid == gid {
			return mode&0o010 != 0
		}
	}
	return mode&0o001 != 0
}

// checkFolder tells why a command cannot start in cwd.
func checkFolder(cwd string) *wire.Problem {
	info, err := os.Stat(cwd)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return wire.NotStarted("permission", fmt.Sprintf("the working directory %q: %v", cwd, err), "")
	case err != nil:
		return wire.NotStarted("cwd_missing", fmt.Sprintf("the working directory %q does not exist", cwd), "make it first")
	case !info.IsDir():
		return wire.NotStarted("cwd_missing", fmt.Sprintf("the working directory %q is no folder", cwd), "")
	}
	return nil
}

func absolute(path, cwd string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return filepath.Join(cwd, path)
}

func orDot(s string) string {
	if s == "" {
		return "."
	}
	return s
}
