package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"orchard/sandboxd/internal/mark"
	"orchard/sandboxd/internal/users"
	"orchard/sandboxd/internal/wire"
)

// argumentLimit is the kernel's limit for one argument, its NUL included (MAX_ARG_STRLEN).
func argumentLimit() int { return 32 * os.Getpagesize() }

// notStarted explains the errno of a fork or exec.
func notStarted(err error, c *mark.Command, who users.Identity) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return wire.NotStarted("resources", err.Error(), "")
	}
	switch errno {
	case syscall.E2BIG:
		return tooLong(c)
	case syscall.ENOENT:
		return wire.NotStarted("not_executable", fmt.Sprintf(
			"%q is there, but the interpreter it asks for (its #! line or dynamic loader) is not", c.Path), "")
	case syscall.ENOEXEC, syscall.ELIBBAD:
		return wire.NotStarted("not_executable", fmt.Sprintf(
			"%q is no program of this machine's architecture, nor a script with a #! line", c.Path), "")
	case syscall.EACCES, syscall.EPERM, syscall.ELOOP, syscall.EINVAL:
		return wire.NotStarted("permission", fmt.Sprintf(
			"starting %q in %q as user %q: %s", c.Path, c.Dir, who.Name, errno.Error()), "")
	}
	return wire.NotStarted("resources", fmt.Sprintf("starting %q: %s", c.Path, errno.Error()),
		"the sandbox is short of processes, memory or descriptors; end something or raise its limits")
}

func tooLong(c *mark.Command) error {
	longest, total := 0, 0
	for _, list := range [][]string{c.Argv, c.Env} {
		for _, s := range list {
			longest = max(longest, len(s)+1)
			total += len(s) + 1
		}
	}
	return wire.NotStarted("argument_too_long", fmt.Sprintf(
		"the kernel's limit is %d bytes for one argument or variable and about 2 MiB for all of them; here the longest has %d and all have %d",
		argumentLimit(), longest, total), "pass it by stdin or in a file")
}
