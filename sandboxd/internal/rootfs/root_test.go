package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ways runs a test with openat2 and with the walk that stands in for it.
func ways(t *testing.T, test func(t *testing.T)) {
	t.Run("openat2", test)
	t.Run("walk", func(t *testing.T) {
		noOpenat2.Store(true)
		defer noOpenat2.Store(false)
		test(t)
	})
}

// house makes a root with a secret beside it.
func house(t testing.TB) (root *Root, inside, outside string) {
	t.Helper()
	top := t.TempDir()
	inside, outside = filepath.Join(top, "root"), filepath.Join(top, "outside")
	for _, dir := range []string{inside, outside, filepath.Join(inside, "etc"), filepath.Join(inside, "w")} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644))
	must(t, os.WriteFile(filepath.Join(inside, "etc/secret"), []byte("inner"), 0o644))
	root, err := Open(inside, "/w")
	must(t, err)
	t.Cleanup(func() { must(t, root.Close()) })
	return root, inside, outside
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// where tells the real path of what a request opens.
func where(root *Root, name string, flags int) (string, error) {
	fd, err := root.Open(name, flags)
	if err != nil {
		return "", err
	}
	defer syscall.Close(fd)
	return os.Readlink(ProcPath(fd))
}

func TestLinksStayInside(t *testing.T) {
	ways(t, func(t *testing.T) {
		root, inside, outside := house(t)
		links := map[string]string{"abs": "/etc/secret", "up": "../../../../etc/secret", "chain": "abs",
			"out": outside + "/secret", "dir": "/etc", "loop": "loop", "rel": "../etc"}
		for name, target := range links {
			must(t, os.Symlink(target, filepath.Join(inside, "w", name)))
		}
		inner := filepath.Join(inside, "etc/secret")
		for _, name := range []string{"abs", "up", "chain", "dir/secret", "rel/secret", "/w/rel/../etc/secret", "/../../etc/secret"} {
			if got, err := where(root, name, syscall.O_RDONLY); err != nil || got != inner {
				t.Errorf("%s leads to %q, %v", name, got, err)
			}
		}
		for name, want := range map[string]error{"out": syscall.ENOENT, "loop": syscall.ELOOP,
			"abs/x": syscall.ENOTDIR, "dir": nil, "dir/": nil, "abs/": syscall.ENOTDIR} {
			if _, err := where(root, name, syscall.O_RDONLY); err != want {
				t.Errorf("%s answers %v, not %v", name, err, want)
			}
		}
		if got, err := where(root, "out", OPath|syscall.O_NOFOLLOW); err != nil || got != filepath.Join(inside, "w/out") {
			t.Errorf("the link itself is %q, %v", got, err)
		}
	})
}

// A descriptor of ours may be an open folder of the host; a link to it must not be one
// to the folder, whichever way it is written.
func TestMagicLinksAreRefused(t *testing.T) {
	ways(t, func(t *testing.T) {
		_, inside, outside := house(t)
		root, err := Open("/", "/")
		must(t, err)
		defer root.Close()
		dir, err := os.Open(outside)
		must(t, err)
		defer dir.Close()
		fd := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), dir.Fd())
		link := filepath.Join(inside, "leak")
		must(t, os.Symlink(fd+"/..", link))
		for _, name := range []string{fd + "/secret", fd + "/../outside/secret", link + "/outside/secret",
			fmt.Sprintf("/proc/self/fd/%d/secret", dir.Fd()), fmt.Sprintf("/proc/%d/root/etc", os.Getpid())} {
			if got, err := where(root, name, syscall.O_RDONLY); err != syscall.ELOOP {
				t.Errorf("%s leads to %q, %v", name, got, err)
			}
		}
		if place, err := root.Parent(fd, true); err != syscall.ELOOP {
			t.Errorf("a place by a magic link: %v, %v", place, err)
		}
		for _, name := range []string{"/proc/self/status", "/proc/mounts", "/proc/thread-self/status"} {
			if _, err := where(root, name, syscall.O_RDONLY); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestBeneathRefusesToLeave(t *testing.T) {
	ways(t, func(t *testing.T) {
		_, inside, outside := house(t)
		for name, target := range map[string]string{"abs": "/etc", "up": "..", "out": outside, "in": "sub", "round": "sub/../sub"} {
			must(t, os.Symlink(target, filepath.Join(inside, "w", name)))
		}
		must(t, os.MkdirAll(filepath.Join(inside, "w/sub"), 0o755))
		base, err := Openat(atFdcwd, filepath.Join(inside, "w"), OPath|syscall.O_DIRECTORY, 0)
		must(t, err)
		defer syscall.Close(base)
		for name, want := range map[string]error{"abs": syscall.EXDEV, "up": syscall.EXDEV, "out": syscall.EXDEV,
			"..": syscall.EXDEV, "/": syscall.EXDEV, "sub/../..": syscall.EXDEV, "in": nil, "round": nil, "in/../sub": nil} {
			fd, err := Beneath(base, name, OPath|syscall.O_DIRECTORY)
			if err == nil {
				_ = syscall.Close(fd)
			}
			if err != want {
				t.Errorf("beneath %s: %v, not %v", name, err, want)
			}
		}
		if _, err := Reopen(base, "in", OPath|syscall.O_DIRECTORY); err != syscall.ELOOP {
			t.Errorf("a symlink is reopened: %v", err)
		}
	})
}

func TestParentFollowsToWhatIsNotThere(t *testing.T) {
	ways(t, func(t *testing.T) {
		root, inside, _ := house(t)
		must(t, os.Symlink("/etc/new", filepath.Join(inside, "w/link")))
		must(t, os.Symlink("link", filepath.Join(inside, "w/again")))
		must(t, os.Symlink("a", filepath.Join(inside, "w/b")))
		must(t, os.Symlink("b", filepath.Join(inside, "w/a")))
		for name, want := range map[string]string{"link": "etc new", "again": "etc new", "x": "w x", "/x": " x", "/": " .",
			"../etc": " etc", ".": "w .", "x/": "w x"} {
			place, err := root.Parent(name, true)
			must(t, err)
			dir, err := os.Readlink(ProcPath(place.Dir))
			must(t, err)
			place.Close()
			if got := strings.TrimPrefix(strings.TrimPrefix(dir, inside), "/") + " " + place.Base; got != want {
				t.Errorf("%s is at %q, not %q", name, got, want)
			}
		}
		for name, want := range map[string]error{"a": syscall.ELOOP, "none/x": syscall.ENOENT, "/etc/secret/x": syscall.ENOTDIR} {
			if _, err := root.Parent(name, true); err != want {
				t.Errorf("%s: %v, not %v", name, err, want)
			}
		}
	})
}

// The kernel gives up on ".." when something is renamed meanwhile; no client shall hear of it.
func TestRenamesMeanwhileAreBorne(t *testing.T) {
	root, inside, _ := house(t)
	must(t, os.MkdirAll(filepath.Join(inside, "w/a/b"), 0o755))
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				_ = os.Rename(filepath.Join(inside, "etc"), filepath.Join(inside, "etc2"))
				_ = os.Rename(filepath.Join(inside, "etc2"), filepath.Join(inside, "etc"))
			}
		}
	}()
	name := "a" + strings.Repeat("/b/..", 300)
	for i := 0; i < 300; i++ {
		if _, err := where(root, name, OPath); err != nil {
			t.Errorf("try %d: %v", i, err)
			break
		}
	}
	close(done)
	<-stopped
}

func TestChmodWithoutTheNewCall(t *testing.T) {
	for _, old := range []bool{false, true} {
		noFchmodat2.Store(old)
		_, inside, _ := house(t)
		fd, err := Openat(atFdcwd, filepath.Join(inside, "etc/secret"), OPath, 0)
		must(t, err)
		must(t, Chmod(fd, 0o4711))
		st, err := Fstat(fd)
		must(t, err)
		must(t, syscall.Close(fd))
		if st.Mode&0o7777 != 0o4711 {
			t.Errorf("mode %o, old way %v", st.Mode, old)
		}
	}
	noFchmodat2.Store(false)
}

func TestDescriptorsAreGivenBack(t *testing.T) {
	ways(t, func(t *testing.T) {
		root, inside, _ := house(t)
		must(t, os.Symlink("../etc", filepath.Join(inside, "w/l")))
		before := openFiles(t)
		for i := 0; i < 50; i++ {
			for _, name := range []string{"l/secret", "l/none", "none/none", "l/secret/x", "/../l"} {
				_, _ = where(root, name, syscall.O_RDONLY)
				if place, err := root.Parent(name, true); err == nil {
					place.Close()
				}
			}
		}
		if after := openFiles(t); after != before {
			t.Errorf("%d descriptors open, %d before", after, before)
		}
	})
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}
