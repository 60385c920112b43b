// Package process runs the commands of the sandbox: start at most once per operation id,
// streams, time-outs that end the whole tree, and results that can be fetched again.
package process

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"orchard/sandboxd/internal/wire"
)

const (
	maxTimeout     = 31536000 // seconds
	maxOutputLimit = 1 << 30
	maxStdinData   = 1 << 20
	// defaultOutputLimit is the bounded view of a stream when the request names none.
	defaultOutputLimit = 1 << 20
)

type size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// request is the body of POST /v1/processes.
type request struct {
	ID               string             `json:"id"`
	Argv             *[]string          `json:"argv"`
	Shell            *string            `json:"shell"`
	ShellPath        string             `json:"shell_path"`
	Cwd              *string            `json:"cwd"`
	Env              map[string]*string `json:"env"`
	UnsetEnv         []string           `json:"unset_env"`
	User             string             `json:"user"`
	Stdin            string             `json:"stdin"`
	StdinData        *string            `json:"stdin_data"`
	PTY              *size              `json:"pty"`
	Merge            bool               `json:"merge"`
	Timeout          *float64           `json:"timeout_s"`
	OutputLimit      *int64             `json:"output_limit"`
	KillOnDisconnect bool               `json:"kill_on_disconnect"`

	input []byte // decoded StdinData
}

// check validates a request; every complaint names its field.
func (q *request) check() error {
	if err := checkID(q.ID); err != nil {
		return err
	}
	for _, check := range []func() *wire.Problem{q.checkCommand, q.checkEnv, q.checkStdin, q.checkBounds, q.checkPTY} {
		if p := check(); p != nil {
			return p
		}
	}
	return nil
}

func checkID(id string) error {
	if !wire.IsID(id) || id == "." || id == ".." {
		return wire.Invalid("id", "an operation id of 1-128 of [A-Za-z0-9._-] is due")
	}
	return nil
}

func (q *request) checkCommand() *wire.Problem {
	switch {
	case (q.Argv == nil) == (q.Shell == nil):
		return wire.Invalid("argv", "exactly one of argv and shell is due")
	case q.Argv != nil && (len(*q.Argv) == 0 || (*q.Argv)[0] == ""):
		return wire.Invalid("argv", "argv needs a program as its first element")
	case q.Argv != nil && q.ShellPath != "":
		return wire.Invalid("shell_path", "shell_path goes with shell, not with argv")
	case q.Shell != nil && hasNUL(*q.Shell):
		return wire.Invalid("shell", "a NUL byte cannot be passed to a program")
	case hasNUL(q.ShellPath):
		return wire.Invalid("shell_path", "a NUL byte cannot be in a path")
	case q.Cwd != nil && (hasNUL(*q.Cwd) || *q.Cwd == ""):
		return wire.Invalid("cwd", "a path without NUL bytes is due")
	case hasNUL(q.User):
		return wire.Invalid("user", "a NUL byte cannot be in a name")
	}
	if q.Argv != nil {
		for i, argument := range *q.Argv {
			if hasNUL(argument) {
				return wire.Invalid("argv", fmt.Sprintf("argv[%d]: a NUL byte cannot be passed to a program", i))
			}
		}
	}
	return nil
}

func (q *request) checkEnv() *wire.Problem {
	for key, value := range q.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return wire.Invalid("env", fmt.Sprintf("%q cannot be the name of an environment variable", key))
		}
		if value == nil {
			return wire.Invalid("env", fmt.Sprintf("%q is null; unset_env removes a variable", key))
		}
		if hasNUL(*value) {
			return wire.Invalid("env", fmt.Sprintf("%q: a NUL byte cannot be in a value", key))
		}
	}
	return nil
}

func (q *request) checkStdin() *wire.Problem {
	if q.Stdin == "" {
		q.Stdin = "closed"
	}
	if q.Stdin != "closed" && q.Stdin != "open" {
		return wire.Invalid("stdin", `"closed" or "open" is due`)
	}
	if q.StdinData == nil {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(*q.StdinData)
	switch {
	case err != nil:
		return wire.Invalid("stdin_data", "not base64: "+err.Error())
	case len(data) > maxStdinData:
		return wire.Invalid("stdin_data", "more than 1 MiB: open stdin and stream it instead")
	case q.Stdin == "open" || q.PTY != nil:
		return wire.Invalid("stdin_data", "stdin_data is followed by the end of input; it goes neither with an open stdin nor with a pty")
	}
	q.input, q.StdinData = data, nil
	return nil
}

func (q *request) checkBounds() *wire.Problem {
	if q.Timeout != nil && !(*q.Timeout > 0 && *q.Timeout <= maxTimeout) {
		return wire.Invalid("timeout_s", "a number of seconds above 0 and up to 31536000, or null for none, is due")
	}
	if q.OutputLimit != nil && (*q.OutputLimit < 0 || *q.OutputLimit > maxOutputLimit) {
		return wire.Invalid("output_limit", "a number of bytes from 0 to 1073741824 is due")
	}
	return nil
}

func (q *request) checkPTY() *wire.Problem {
	if q.PTY == nil {
		return nil
	}
	return q.PTY.check("pty")
}

func (s *size) check(field string) *wire.Problem {
	if s.Cols < 1 || s.Cols > 65535 || s.Rows < 1 || s.Rows > 65535 {
		return wire.Invalid(field, "cols and rows from 1 to 65535 are due")
	}
	return nil
}

func (q *request) outputLimit() int64 {
	if q.OutputLimit == nil {
		return defaultOutputLimit
	}
	return *q.OutputLimit
}

// timeout is 0 for none.
func (q *request) timeout() time.Duration {
	if q.Timeout == nil {
		return 0
	}
	return time.Duration(*q.Timeout * float64(time.Second))
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }
