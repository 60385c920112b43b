package main

import (
	"os/exec"
	"strings"
	"testing"
)

const socketPy = `
import ctypes, errno, socket, sys
for family in (socket.AF_INET6, socket.AF_INET, socket.AF_UNIX):
    try:
        socket.socket(family).close(); print(family.name, "made")
    except OSError as error:
        print(family.name, errno.errorcode[error.errno])
libc = ctypes.CDLL(None, use_errno=True)
for number in sys.argv[1:]:
    print(number, libc.syscall(int(number), 8, 0, 0), errno.errorcode.get(ctypes.get_errno(), "?"))
`

func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is missing")
	}
}

func TestWithoutIPv6NoCommandHasASocketOfIt(t *testing.T) {
	needPython(t)
	forEachMark(t, options{config: map[string]any{"ipv6": "off"}}, func(t *testing.T, d *daemon) {
		r := d.run([]string{"python3", "-c", socketPy, "425"}, nil)
		if got := string(r.stdout); got != "AF_INET6 EAFNOSUPPORT\nAF_INET made\nAF_UNIX made\n425 -1 EPERM\n" {
			t.Errorf("got %q, %s", got, r.stderr)
		}
		status, _, text := d.do("POST", "/v1/reverse/0", nil)
		if status != 201 {
			t.Errorf("a reverse listener: %d %s", status, text)
		}
	})
}

func TestIPv6StaysWhereItIsAssignedOrNothingIsSaid(t *testing.T) {
	needPython(t)
	d := start(t, options{mark: "supervisor"})
	if r := d.run([]string{"python3", "-c", socketPy}, nil); !strings.HasPrefix(string(r.stdout), "AF_INET6 made\n") {
		t.Errorf("got %q, %s", r.stdout, r.stderr)
	}
}
