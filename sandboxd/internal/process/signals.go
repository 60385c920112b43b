package process

import (
	"encoding/json"
	"strconv"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/wire"
)

const lastSignal = 64

var signalNames = map[syscall.Signal]string{
	syscall.SIGHUP: "HUP", syscall.SIGINT: "INT", syscall.SIGQUIT: "QUIT", syscall.SIGILL: "ILL",
	syscall.SIGTRAP: "TRAP", syscall.SIGABRT: "ABRT", syscall.SIGBUS: "BUS", syscall.SIGFPE: "FPE",
	syscall.SIGKILL: "KILL", syscall.SIGUSR1: "USR1", syscall.SIGSEGV: "SEGV", syscall.SIGUSR2: "USR2",
	syscall.SIGPIPE: "PIPE", syscall.SIGALRM: "ALRM", syscall.SIGTERM: "TERM", syscall.SIGSTKFLT: "STKFLT",
	syscall.SIGCHLD: "CHLD", syscall.SIGCONT: "CONT", syscall.SIGSTOP: "STOP", syscall.SIGTSTP: "TSTP",
	syscall.SIGTTIN: "TTIN", syscall.SIGTTOU: "TTOU", syscall.SIGURG: "URG", syscall.SIGXCPU: "XCPU",
	syscall.SIGXFSZ: "XFSZ", syscall.SIGVTALRM: "VTALRM", syscall.SIGPROF: "PROF", syscall.SIGWINCH: "WINCH",
	syscall.SIGIO: "IO", syscall.SIGPWR: "PWR", syscall.SIGSYS: "SYS",
}

// signalName is the name without SIG, or the number for a real-time signal.
func signalName(s syscall.Signal) string {
	if name, ok := signalNames[s]; ok {
		return name
	}
	return strconv.Itoa(int(s))
}

// parseSignal takes "TERM", "SIGTERM", "15" or 15.
func parseSignal(raw json.RawMessage) (syscall.Signal, error) {
	text := strings.Trim(string(raw), `"`)
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= lastSignal {
		return syscall.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for s, known := range signalNames {
		if known == name {
			return s, nil
		}
	}
	return 0, wire.Invalid("signal", "a name such as TERM or a number from 1 to 64 is due")
}
