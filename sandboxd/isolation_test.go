package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheDaemonsOwnThingsAreInvisibleToCommands(t *testing.T) {
	forEachMark(t, options{state: true}, func(t *testing.T, d *daemon) {
		r := d.run("env; ls -l /proc/self/fd; cat /proc/self/oom_score_adj; cut -d' ' -f19 /proc/self/stat; umask", nil)
		for _, secret := range []string{"DAEMON_SECRET", "SANDBOXD", testToken, "cgroup", "state", "socket:"} {
			if strings.Contains(string(r.stdout), secret) {
				t.Errorf("a command sees %q in:\n%s", secret, r.stdout)
			}
		}
		own, _ := os.ReadFile("/proc/self/oom_score_adj")
		nice, _ := exec.Command("cut", "-d ", "-f19", "/proc/self/stat").Output()
		if !strings.HasSuffix(string(r.stdout), string(own)+string(nice)+"0022\n") {
			t.Errorf("OOM score, nice, umask: %s", r.stdout)
		}
		contains(t, string(r.stdout), "FROM_IMAGE=1\n")
	})
}

func TestACommandOfTheSameUserCannotReadTheDaemon(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to start the daemon as another user")
	}
	d := start(t, options{mark: "supervisor"})
	pid := d.process.Process.Pid
	// The daemon of this test is root with all capabilities, which may read anything; what
	// the kernel shows of dumpability is the owner of /proc/PID and the refusal to others.
	r := d.run(fmt.Sprintf("cat /proc/%d/environ /proc/%d/mem; ls /proc/%d/fd", pid, pid, pid), body{"user": "nobody"})
	if len(r.stdout) != 0 || r.code() == 0 {
		t.Errorf("another user reads of the daemon: %q", r.stdout)
	}
}

func TestANamedUserGetsGroupsHomeAndAPath(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	forEachMark(t, options{config: map[string]any{"env": map[string]string{}}}, func(t *testing.T, d *daemon) {
		cases := []struct{ user, due string }{
			{"nobody", "65534 65534 65534 /nonexistent nobody"},
			{"4242", "4242 0 0 / 4242"},
			{"4242:4343", "4242 4343 4343 / 4242"},
			{"nobody:daemon", "65534 1 1 /nonexistent nobody"},
		}
		for _, c := range cases {
			r := d.run("echo $(id -u) $(id -g) $(id -G) $HOME $USER; echo $PATH", body{"user": c.user})
			if string(r.stdout) != c.due+"\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" {
				t.Errorf("%s: %q", c.user, r.stdout)
			}
		}
		if r := d.run("true", body{"user": "no such"}); r.problem.Reason != "user_unknown" {
			t.Errorf("an unknown user: %+v", r.problem)
		}
	})
}

func TestValuesArriveAsTheyAre(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		values := []string{"-n", `back\slash`, "new\nline", `quo"te'`, "$HOME", "`id`", "é日本", "", " lead", "'; touch /pwned; '"}
		for _, value := range values {
			folder := filepath.Join(d.folder, "x"+strings.ReplaceAll(value, "/", "_"))
			must(t, os.MkdirAll(folder, 0o755))
			r := d.run([]string{"sh", "-c", `printf '%s|%s|%s' "$1" "$V" "$PWD"`, "sh", value}, body{"env": body{"V": value}, "cwd": folder})
			if due := value + "|" + value + "|" + folder; string(r.stdout) != due {
				t.Errorf("%q arrived as %q (%+v)", due, r.stdout, r.problem)
			}
		}
	})
}

func TestWhatCannotStartSaysWhyAndNothingRuns(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		file := func(name, content string, mode os.FileMode) string {
			path := filepath.Join(d.folder, name)
			must(t, os.WriteFile(path, []byte(content), mode))
			return path
		}
		plain := file("plain", "x", 0o644)
		cases := []struct {
			command any
			extra   body
			reason  string
		}{
			{[]string{"no-such-program"}, nil, "program_not_found"},
			{[]string{"/no/such/program"}, nil, "program_not_found"},
			{[]string{"./plain"}, body{"cwd": d.folder}, "permission"},
			{[]string{plain}, nil, "permission"},
			{[]string{d.folder}, nil, "not_executable"},
			{[]string{file("binary", "\x7fELF\x00\x00", 0o755)}, nil, "not_executable"},
			{[]string{file("script", "#!/no/such/shell\n", 0o755)}, nil, "not_executable"},
			{"true", body{"shell_path": "nosh"}, "no_shell"},
			{"true", body{"cwd": "/no/such"}, "cwd_missing"},
			{"true", body{"cwd": plain}, "cwd_missing"},
			{[]string{"echo", strings.Repeat("x", 200000)}, nil, "argument_too_long"},
			{[]string{"sh"}, body{"unset_env": []string{"PATH"}}, "program_not_found"},
		}
		for _, c := range cases {
			r := d.run(c.command, c.extra)
			if r.status != 422 || r.problem.Code != "command_not_started" || r.problem.Reason != c.reason {
				t.Errorf("%.40v %v: %d %+v", c.command, c.extra, r.status, r.problem)
			}
		}
	})
}

func TestALongScriptRunsFromAFile(t *testing.T) {
	forEachMark(t, options{}, func(t *testing.T, d *daemon) {
		script := "x=1\n#" + strings.Repeat("y", 400<<10) + "\necho $x ran; exit 5"
		for _, extra := range []body{{}, {"user": "nobody"}} {
			if extra["user"] != nil && os.Getuid() != 0 {
				continue
			}
			if r := d.run(script, extra); string(r.stdout) != "1 ran\n" || r.code() != 5 {
				t.Errorf("%v: %q, code %d, stderr %q, %+v", extra, r.stdout, r.code(), r.stderr, r.problem)
			}
		}
	})
}
