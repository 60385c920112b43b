package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"orchard/sandboxd/internal/mark"
	"orchard/sandboxd/internal/memfd"
	"orchard/sandboxd/internal/output"
	"orchard/sandboxd/internal/users"
	"orchard/sandboxd/internal/wire"
)

// Settings are what the configuration says about every command.
type Settings struct {
	Maker    mark.Maker
	Store    *output.Store
	Activity wire.Activity
	Env      map[string]string
	User     string
	Workdir  string
	Shell    string
	// OOMAdjust is the oom_score_adj of commands where it is not ours.
	OOMAdjust *int
}

// scriptFD is where a shell finds a script that is too long for an argument.
const scriptFD = 3

// What a status shows of a long argv.
const (
	shownArguments = 64
	shownBytes     = 1024
)

// launch starts what q asks for; on an error nothing has run.
func (p *Process) launch(s *Settings, q *request) error {
	c, who, err := resolve(s, q)
	if err != nil {
		return err
	}
	p.argv = shown(c.Argv)
	plumbing, err := p.plumb(s, q, c, who)
	defer plumbing.closeTheirs()
	if err != nil {
		plumbing.closeOurs()
		return wire.NotStarted("resources", err.Error(), "the sandbox is short of descriptors or memory")
	}
	end := s.Activity.Begin()
	p.began = time.Now()
	if p.tree, err = start(s.Maker, c); err != nil {
		end()
		plumbing.closeOurs()
		return notStarted(err, c, who)
	}
	p.endActivity = end
	for _, m := range p.pumps {
		go m.run()
	}
	if plumbing.feed != nil {
		go plumbing.feed()
	}
	return nil
}

// shown is what a status shows of argv: a result is kept for an hour and sent often, and
// a script may have megabytes.
func shown(argv []string) []string {
	out := make([]string, 0, min(len(argv), shownArguments))
	for _, argument := range argv[:min(len(argv), shownArguments)] {
		if len(argument) > shownBytes {
			argument = strings.ToValidUTF8(argument[:shownBytes], "") + "…"
		}
		out = append(out, strings.Clone(argument))
	}
	return out
}

// start starts c. Where groups cannot be set (a user namespace without them), it starts
// without; where nothing of the identity may be set and it is our own anyway, with it.
func start(maker mark.Maker, c *mark.Command) (mark.Tree, error) {
	tree, err := maker.Start(c)
	if err == nil || c.Credential == nil || !errors.Is(err, syscall.EPERM) {
		return tree, err
	}
	wanted := *c.Credential
	if int(wanted.Uid) == os.Geteuid() && int(wanted.Gid) == os.Getegid() {
		c.Credential = nil
		return maker.Start(c)
	}
	c.Credential = &syscall.Credential{Uid: wanted.Uid, Gid: wanted.Gid, NoSetGroups: true}
	return maker.Start(c)
}

// resolve finds user, folder, environment and program of a request.
func resolve(s *Settings, q *request) (*mark.Command, users.Identity, error) {
	spec := q.User
	if spec == "" {
		spec = s.User
	}
	who, err := users.Database{}.Lookup(spec)
	if err != nil {
		return nil, who, wire.NotStarted("user_unknown", err.Error(), "name a user of the image, or a number")
	}
	cwd := s.Workdir
	if q.Cwd != nil {
		cwd = absolute(*q.Cwd, s.Workdir)
	}
	if problem := checkFolder(cwd); problem != nil {
		return nil, who, problem
	}
	env := environment(s.Env, who, q)
	c := &mark.Command{Dir: cwd, Env: list(env), TTY: q.PTY != nil, OOMAdjust: s.OOMAdjust}
	if !ourselves(spec, who) {
		c.Credential = &syscall.Credential{Uid: who.UID, Gid: who.GID, Groups: who.Groups}
	}
	if problem := q.program(c, s.Shell, env["PATH"], who); problem != nil {
		return nil, who, problem
	}
	return c, who, nil
}

// ourselves tells whether who is the user that we are, where we could not be another: then
// nothing needs to be set, and an unnamed group is ours.
func ourselves(spec string, who users.Identity) bool {
	return os.Geteuid() != 0 && int(who.UID) == os.Geteuid() &&
		(int(who.GID) == os.Getegid() || !strings.Contains(spec, ":"))
}

// program fills in what is executed: argv itself, or a shell with the script.
func (q *request) program(c *mark.Command, shell, path string, who users.Identity) (problem *wire.Problem) {
	if q.Argv != nil {
		c.Argv = *q.Argv
		c.Path, problem = findProgram(c.Argv[0], path, c.Dir, who)
		return problem
	}
	if c.Path, problem = findShell(q.ShellPath, shell, path, c.Dir, who); problem != nil {
		return problem
	}
	name := orDefault(q.ShellPath, shell)
	if q.scriptByFile() {
		c.Argv = []string{name, fmt.Sprintf("/proc/self/fd/%d", scriptFD)}
	} else {
		c.Argv = []string{name, "-c", *q.Shell}
	}
	return nil
}

// scriptByFile tells whether the script is beyond the kernel's limit for one argument.
func (q *request) scriptByFile() bool { return q.Shell != nil && len(*q.Shell) >= argumentLimit() }

// plumbing is the descriptors of one start: ours stay open, theirs are the command's.
type plumbing struct {
	ours, theirs []*os.File
	feed         func() // writes the given input, once the command runs
}

func (l *plumbing) closeTheirs() { closeFiles(l.theirs) }
func (l *plumbing) closeOurs()   { closeFiles(l.ours) }

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// plumb makes stdin, stdout and stderr, and puts the command's ends into c.Files.
func (p *Process) plumb(s *Settings, q *request, c *mark.Command, who users.Identity) (*plumbing, error) {
	l := &plumbing{}
	p.streams = [2]*output.Spool{s.Store.New(), s.Store.New()}
	if q.PTY != nil {
		if err := p.plumbTerminal(l, q, c, who); err != nil {
			return l, err
		}
	} else if err := p.plumbPipes(l, q, c); err != nil {
		return l, err
	}
	if q.scriptByFile() {
		script, err := memfd.New("script", strings.NewReader(*q.Shell))
		if err != nil {
			return l, err
		}
		l.theirs = append(l.theirs, script)
		c.Files = append(c.Files, int(script.Fd()))
	}
	return l, nil
}

func (p *Process) plumbPipes(l *plumbing, q *request, c *mark.Command) error {
	in, err := p.plumbStdin(l, q)
	if err != nil {
		return err
	}
	out, err := p.outPipe(l, p.streams[0])
	if err != nil {
		return err
	}
	errs := out
	if q.Merge {
		p.streams[1].Close()
	} else if errs, err = p.outPipe(l, p.streams[1]); err != nil {
		return err
	}
	c.Files = []int{in, out, errs}
	return nil
}

// outPipe makes a pipe from the command to a spool and gives the command's end.
func (p *Process) outPipe(l *plumbing, to *output.Spool) (int, error) {
	ends, err := pipe()
	if err != nil {
		return 0, err
	}
	_ = syscall.SetNonblock(ends[0], true)
	ours := os.NewFile(uintptr(ends[0]), "output")
	l.ours, l.theirs = append(l.ours, ours), append(l.theirs, os.NewFile(uintptr(ends[1]), "output"))
	p.pumps = append(p.pumps, newPump(ours, to, true))
	return ends[1], nil
}

// plumbStdin gives the command's end of its input: /dev/null where it is closed, for a
// reader there sees the end at once.
func (p *Process) plumbStdin(l *plumbing, q *request) (int, error) {
	p.stdin = &stdin{}
	if q.Stdin == "closed" && len(q.input) == 0 {
		null, err := os.OpenFile("/dev/null", os.O_RDONLY, 0)
		if err == nil {
			l.theirs = append(l.theirs, null)
			return int(null.Fd()), nil
		}
	}
	ends, err := pipe()
	if err != nil {
		return 0, err
	}
	l.theirs = append(l.theirs, os.NewFile(uintptr(ends[0]), "stdin"))
	_ = syscall.SetNonblock(ends[1], true)
	ours := os.NewFile(uintptr(ends[1]), "stdin")
	if q.Stdin == "open" {
		p.stdin.to = ours
		l.ours = append(l.ours, ours)
		return ends[0], nil
	}
	if len(q.input) <= smallPipe { // fits into the pipe: no goroutine
		_, err = ours.Write(q.input)
		ours.Close()
		return ends[0], err
	}
	l.ours = append(l.ours, ours)
	l.feed = func() {
		_, _ = ours.Write(q.input) // EPIPE: the command did not want it all
		ours.Close()
	}
	return ends[0], nil
}

func pipe() (ends [2]int, err error) {
	var raw [2]int
	err = syscall.Pipe2(raw[:], syscall.O_CLOEXEC)
	return raw, err
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
