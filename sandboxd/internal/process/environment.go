package process

import (
	"sort"

	"orchard/sandboxd/internal/users"
)

// DefaultPath is where programs are looked for where nobody says otherwise.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// guards keep programs from waiting for somebody who is not there: no pager, no prompt.
// They are defaults only; the image or the request may set them otherwise.
var guards = map[string]string{
	"PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat", "SYSTEMD_PAGER": "cat",
	"GIT_TERMINAL_PROMPT": "0", "DEBIAN_FRONTEND": "noninteractive",
}

// environment is built from, weakest first: defaults, the image's environment, the home
// and name of a user that the request names, the request. sandboxd's own is no part of it.
func environment(base map[string]string, who users.Identity, q *request) map[string]string {
	env := map[string]string{"PATH": DefaultPath}
	for key, value := range guards {
		env[key] = value
	}
	if q.PTY != nil {
		env["TERM"] = "xterm-256color"
	}
	personal := map[string]string{"HOME": who.Home, "USER": who.Name, "LOGNAME": who.Name}
	if who.Shell != "" {
		personal["SHELL"] = who.Shell
	}
	merge(env, personal)
	merge(env, base)
	if q.User != "" {
		merge(env, personal)
	}
	for key, value := range q.Env {
		env[key] = *value
	}
	for _, key := range q.UnsetEnv {
		delete(env, key)
	}
	return env
}

func merge(into, from map[string]string) {
	for key, value := range from {
		into[key] = value
	}
}

// list turns an environment into the form of execve, in a stable order.
func list(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for key, value := range env {
		out = append(out, key+"="+value)
	}
	sort.Strings(out)
	return out
}
