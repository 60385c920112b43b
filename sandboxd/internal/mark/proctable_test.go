package mark

import "testing"

func TestParseStatTrustsNoName(t *testing.T) {
	tail := " S 7 1 1 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 %d 0 999 0 0"
	for _, name := range []string{"sh", "a) S 1 (b", "x\n) Z 0 0", ")", ""} {
		p, ok := parseStat([]byte("5 (" + name + ")" + " S 7 1 1 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 999 0 0"))
		if !ok || p.parent != 7 || p.started != 999 || p.ticks != 100 || p.threads != 1 || p.dead() {
			t.Errorf("%q: %+v, %v", name, p, ok)
		}
	}
	for _, broken := range []string{"", "5 (x", "5 (x) S", "5 (x) S y" + tail} {
		if p, ok := parseStat([]byte(broken)); ok {
			t.Errorf("%q: %+v", broken, p)
		}
	}
}

func TestAZombieWithLivingThreadsIsNotDead(t *testing.T) {
	if (process{state: 'Z', threads: 2}).dead() || !(process{state: 'Z', threads: 1}).dead() || !(process{state: 'X'}).dead() {
		t.Error("a process is dead when its last thread is")
	}
}
