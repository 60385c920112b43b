package rootfs

import (
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzResolve builds a tree with symlinks from the input and walks about in it: nothing
// opened is ever outside, and both ways of resolving agree.
func FuzzResolve(f *testing.F) {
	for seed := int64(0); seed < 40; seed++ {
		f.Add(seed, "a/../b/c")
	}
	f.Add(int64(1), "../../outside/secret")
	f.Add(int64(2), "a/b/../../../outside/secret")
	f.Fuzz(func(t *testing.T, seed int64, name string) {
		if strings.IndexByte(name, 0) >= 0 || len(name) > 200 {
			t.Skip("no name that a request can carry")
		}
		root, inside, _ := house(t)
		rng := rand.New(rand.NewSource(seed))
		plant(rng, inside)
		for _, name := range append(wander(rng), name, name+"/x", "a/"+name) {
			checkBoth(t, root, inside, name)
		}
	})
}

var words = []string{"a", "b", "c", "..", ".", "w", "etc", "secret", "outside", "", "a/b", "b/c"}

func wander(rng *rand.Rand) []string {
	var out []string
	for range [30]struct{}{} {
		var parts []string
		for n := rng.Intn(7) + 1; n > 0; n-- {
			parts = append(parts, words[rng.Intn(len(words))])
		}
		out = append(out, strings.Join(parts, "/"))
	}
	return out
}

// plant puts folders, files and symlinks at random places of the tree.
func plant(rng *rand.Rand, top string) {
	targets := append(wander(rng), "/", "/..", "/../outside", "../../../outside", top+"/../outside", "/a", "a")
	for range [25]struct{}{} {
		place := filepath.Join(top, []string{"", "a", "b", "a/b", "w", "b/c"}[rng.Intn(6)], []string{"a", "b", "c"}[rng.Intn(3)])
		switch rng.Intn(4) {
		case 0:
			_ = os.Mkdir(place, 0o755)
		case 1:
			_ = os.WriteFile(place, []byte("x"), 0o644)
		default:
			target := targets[rng.Intn(len(targets))]
			if rng.Intn(3) == 0 {
				target = "/" + target
			}
			_ = os.Symlink(target, place)
		}
	}
}

func checkBoth(t *testing.T, root *Root, inside, name string) {
	var paths [2]string
	var errs [2]error
	for i := range paths {
		noOpenat2.Store(i == 1)
		paths[i], errs[i] = where(root, name, OPath)
		place, err := root.Parent(name, true)
		if err == nil {
			dir, err := os.Readlink(ProcPath(place.Dir))
			must(t, err)
			place.Close()
			mustBeInside(t, inside, name, dir)
		}
	}
	noOpenat2.Store(false)
	if !errors.Is(errs[0], errs[1]) || paths[0] != paths[1] {
		t.Errorf("%q: openat2 %q %v, walk %q %v", name, paths[0], errs[0], paths[1], errs[1])
	}
	if errs[0] == nil {
		mustBeInside(t, inside, name, paths[0])
	}
}

func mustBeInside(t *testing.T, inside, name, got string) {
	if got != inside && !strings.HasPrefix(got, inside+"/") {
		t.Fatalf("%q leads out, to %s", name, got)
	}
}
