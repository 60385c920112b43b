package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// makeCgroups makes the sandbox's `commands` cgroup as the host does.
func (d *daemon) makeCgroups(o options, files *[]*os.File) map[string]any {
	hierarchies, version, base := []string{"memory", "pids", "cpu", "freezer"}, 1, "/sys/fs/cgroup"
	if o.mark == "cgroup-v2" {
		hierarchies, version = []string{"unified"}, 2
	}
	fds := map[string]int{}
	for _, hierarchy := range hierarchies {
		root := filepath.Join(base, hierarchy)
		if version == 2 {
			root = unifiedRoot(d.t)
		}
		path := filepath.Join(root, fmt.Sprintf("sandboxd-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		if err := os.Mkdir(path, 0o755); err != nil {
			d.t.Skipf("no %s here: %v", o.mark, err)
		}
		d.cgroups[hierarchy] = path
		if version == 2 { // as the host does; without these controllers the limits are skipped
			_ = os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0)
		}
		f, err := os.Open(path)
		must(d.t, err)
		fds[hierarchy] = 3 + len(*files)
		*files = append(*files, f)
	}
	d.t.Cleanup(d.removeCgroups)
	d.limit(o)
	return map[string]any{"version": version, "fds": fds}
}

func (d *daemon) limit(o options) {
	if o.pids > 0 {
		d.setLimit(map[string]string{"pids": "pids.max", "unified": "pids.max"}, strconv.Itoa(o.pids))
	}
	if o.memory > 0 {
		d.setLimit(map[string]string{"memory": "memory.limit_in_bytes", "unified": "memory.max"}, strconv.Itoa(o.memory))
	}
}

func (d *daemon) setLimit(file map[string]string, value string) {
	for hierarchy, name := range file {
		path, ok := d.cgroups[hierarchy]
		if !ok {
			continue
		}
		if err := os.WriteFile(filepath.Join(path, name), []byte(value), 0); err != nil {
			d.t.Skipf("no limits in this hierarchy: %v", err)
		}
	}
}

// unifiedRoot finds a version 2 hierarchy: the only one, or the one beside version 1.
func unifiedRoot(t *testing.T) string {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			return root
		}
	}
	t.Skip("no cgroup version 2 hierarchy is mounted here")
	return ""
}

func (d *daemon) removeCgroups() {
	for _, path := range d.cgroups {
		deadline := time.Now().Add(soon)
		for {
			left, _ := filepath.Glob(filepath.Join(path, "c[0-9]*"))
			for _, child := range left {
				_ = syscall.Rmdir(child)
			}
			err := syscall.Rmdir(path)
			if err == nil || os.IsNotExist(err) {
				break
			}
			if time.Now().After(deadline) {
				d.t.Errorf("the cgroup %s was left behind: %v", path, err)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
