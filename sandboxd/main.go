// sandboxd is the daemon inside every Orchard sandbox: commands, files, ports, lease.
// The wire contract is spec/wire.md.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"orchard/sandboxd/internal/config"
	"orchard/sandboxd/internal/dirfd"
	"orchard/sandboxd/internal/files"
	"orchard/sandboxd/internal/ipv6"
	"orchard/sandboxd/internal/lease"
	"orchard/sandboxd/internal/mark"
	"orchard/sandboxd/internal/output"
	"orchard/sandboxd/internal/process"
	"orchard/sandboxd/internal/reap"
	"orchard/sandboxd/internal/seal"
	"orchard/sandboxd/internal/server"
	"orchard/sandboxd/internal/token"
	"orchard/sandboxd/internal/tunnel"
	"orchard/sandboxd/internal/wire"
)

// version is set by the linker.
var version = "dev"

func main() {
	log.SetFlags(log.LstdFlags | log.LUTC)
	log.SetPrefix("sandboxd: ")
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			syscall.Exit(mark.Supervise())
		case "install":
			if err := install(os.Args[2:]); err != nil {
				log.Fatal(err)
			}
			return
		case "--version", "version":
			fmt.Printf("sandboxd %s wire %s\n", version, wire.Version)
			return
		}
	}
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// run builds the parts in the order in which they stand on each other, and serves.
func run(arguments []string) error {
	began := time.Now()
	settle()
	dirfd.HoldBack()
	c, err := config.Load(arguments)
	if err != nil {
		return err
	}
	inherited(c)
	state, err := stateFolder(c)
	if err != nil {
		return err
	}
	note := deathNote(c.DeathFile)
	maker, err := newMaker(c)
	if err != nil {
		return err
	}
	store, err := output.NewStore(state, c.SpoolLimitBytes)
	if err != nil {
		return err
	}
	tokens, err := token.New(c.TokenSHA256)
	if err != nil {
		return err
	}
	life := lease.New(terms(c.Lease))
	table := process.NewTable(&process.Settings{Maker: maker, Store: store, Activity: life, Env: c.Env, User: c.User,
		Workdir: c.Workdir, Shell: c.Shell, OOMAdjust: oomAdjust(c.OOMScoreAdj)})
	life.Hold()
	sealing := seal.New(func() { life.Ready(); entrypoint(table, c.Entrypoint) })
	rooms := []server.Room{table, life, tokens, sealing, &server.Health{ID: c.ID, Version: version, Maker: maker,
		Running: table.Running, Sealed: sealing.Sealed, Began: began}}
	tree, err := files.New(files.Deps{Root: "/", Workdir: c.Workdir, User: c.User})
	if err != nil {
		return err
	}
	rooms = append(rooms, tree, tunnel.New(tunnel.Deps{Activity: life}))
	listener, err := listen(c)
	if err != nil {
		return err
	}
	life.Watch(func(reason, detail string) {
		table.Shutdown()
		die(state, note, reason, detail)
	})
	onSignal(life)
	if c.Seal == nil {
		sealing.Open()
	} else {
		sealing.Watch(span(&c.Seal.Timeout), span(c.Seal.Silence()), life.End)
	}
	handler := server.Handler(server.Options{ID: c.ID, Tokens: tokens, Activity: life,
		Closing: life.Closing, Sealed: sealing.Sealed, Unsealed: unsealed, Quiet: quiet(), Rooms: rooms})
	failed := make(chan error)
	go func() { failed <- server.Serve(listener, handler) }() // not on main's thread: see hygiene.go
	return <-failed
}

// entrypoint starts the image's program, if asked for; whoever finds us ready finds it too.
func entrypoint(table *process.Table, argv []string) {
	if len(argv) > 0 {
		started := make(chan struct{})
		go func() { table.Entrypoint(argv); close(started) }() // not on main's thread: see hygiene.go
		<-started
	}
}

// unsealed are the routes by which nothing runs in the sandbox, served before it is sealed too.
var unsealed = []string{"GET /v1/health", "POST /v1/seal", "GET /v1/lease", "POST /v1/lease", "POST /v1/shutdown"}

// quiet are the routes that are no activity.
func quiet() []string {
	return append([]string{"GET /v1/health", "POST /v1/seal", "GET /v1/stats", "GET /v1/lease", "GET /v1/reverse",
		"GET /v1/reverse/{port}/carry"}, process.Quiet...)
}

// newMaker uses the cgroups that the host handed in, else supervisors.
func newMaker(c *config.Config) (mark.Maker, error) {
	if err := mark.SetSubreaper(); err != nil {
		return nil, fmt.Errorf("becoming a subreaper: %w", err)
	}
	reaper := reap.New(nil)
	if c.Cgroup != nil {
		maker, err := mark.NewCgroups(c.Cgroup.Version, c.Cgroup.FDs, reaper)
		if err == nil {
			return maker, nil
		}
		log.Printf("the cgroups handed in cannot be used, each command gets a supervisor instead: %v", err)
	}
	prestartThreads()
	return mark.NewSupervisors(reaper)
}

func stateFolder(c *config.Config) (*dirfd.Dir, error) {
	if c.StateFD != nil {
		return &dirfd.Dir{FD: *c.StateFD}, nil
	}
	if c.StateDir == "" {
		return nil, nil
	}
	d, err := dirfd.Open(c.StateDir)
	if err != nil {
		return nil, fmt.Errorf("state_dir %s: %w", c.StateDir, err)
	}
	return &d, nil
}

// listen opens the door, and then narrows the families in which others may open one.
func listen(c *config.Config) (net.Listener, error) {
	listener, err := listener(c.Listen)
	if err != nil {
		return nil, err
	}
	return listener, ipv6.Narrow(c.IPv6)
}

func listener(l config.Listen) (net.Listener, error) {
	if l.FD == nil {
		return net.Listen("tcp", l.TCP)
	}
	f := os.NewFile(uintptr(*l.FD), "listener")
	if f == nil {
		return nil, fmt.Errorf("listen.fd %d is not open", *l.FD)
	}
	defer f.Close()
	listener, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen.fd %d is no listening socket: %w", *l.FD, err)
	}
	if u, ok := listener.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the socket's name is the host's
	}
	return listener, nil
}

// onSignal makes a signal end the sandbox as its lease would, from now on.
func onSignal(life *lease.Lease) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// Caught, not ignored: what is ignored here would be ignored by every command too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGQUIT)
	go func() { life.End("signal", "got "+(<-signals).String()) }()
}
