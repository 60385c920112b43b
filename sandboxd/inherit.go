package main

import (
	"os"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/config"
	"orchard/sandboxd/internal/process"
	"orchard/sandboxd/internal/users"
)

// inherited completes the configuration by what the container runtime set up for this
// process and nobody else knows: the image's environment and its working folder.
func inherited(c *config.Config) {
	if c.Workdir == "." {
		c.Workdir = workingFolder()
	}
	if c.EnvFromProcess {
		env := processEnv(os.Environ())
		for key, value := range c.Env {
			env[key] = value
		}
		c.Env = env
	}
	appendPath(c)
}

// appendPath puts the folders of tools behind the image's own, so that they never shadow a
// program of it.
func appendPath(c *config.Config) {
	if len(c.PathAppend) == 0 {
		return
	}
	path, given := c.Env["PATH"]
	if !given {
		path = process.DefaultPath
	}
	if c.Env == nil {
		c.Env = map[string]string{}
	}
	c.Env["PATH"] = strings.Join(append([]string{path}, c.PathAppend...), ":")
}

func workingFolder() string {
	buffer := make([]byte, 4096)
	n, err := syscall.Getcwd(buffer) // not os.Getwd: that believes $PWD
	if err != nil || n < 2 || buffer[0] != '/' {
		return "/"
	}
	return string(buffer[:n-1])
}

// processEnv is the image's environment as the runtime passed it on: without what the
// cluster adds to every container, and without a HOME that the runtime made up for the
// daemon's own user, for it would outrank that of the user whom a command runs as.
func processEnv(lines []string) map[string]string {
	own, err := users.Database{}.Lookup("")
	env := map[string]string{}
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(key, "KUBERNETES_"), key == "HOSTNAME":
		case key == "HOME" && (value == "/" || err == nil && value == own.Home):
		default:
			env[key] = value
		}
	}
	return env
}
