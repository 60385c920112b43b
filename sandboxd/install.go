package main

import (
	"fmt"
	"io"
	"os"
)

// install copies this very program to path, whole or not at all: so an init container hands
// the daemon to an image that has no program of ours.
func install(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("install takes one path, not %d", len(arguments))
	}
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer own.Close()
	draft := arguments[0] + ".new"
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, own)
	if err == nil {
		err = f.Chmod(0o755) // whatever the umask
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(draft, arguments[0])
	}
	if err != nil {
		_ = os.Remove(draft)
	}
	return err
}
