package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInAPodTheImagesEnvironmentAndFolderAreThoseOfTheProcess(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	d := start(t, options{mark: "supervisor", dir: dir,
		config: map[string]any{"env_from_process": true, "workdir": ".", "env": map[string]string{"BOTH": "configured"}},
		env:    []string{"IMAGE_SAYS=a=b c", "BOTH=image", "KUBERNETES_PORT=tcp://10.0.0.1", "HOSTNAME=pod-1", "HOME=/", "PWD=/nowhere"}})
	r := d.run([]string{"sh", "-c", `echo "$IMAGE_SAYS,$BOTH,$KUBERNETES_PORT,$HOSTNAME"; echo "$HOME"; pwd -P`}, nil)
	lines := strings.Split(string(r.stdout), "\n")
	if len(lines) < 3 || lines[0] != "a=b c,configured,," || lines[1] == "/" || lines[2] != dir {
		t.Errorf("got %q in %s, %s", r.stdout, dir, r.stderr)
	}
	if status, _, _ := d.do("PUT", "/v1/files?path=relative", []byte("x")); status != 200 {
		t.Errorf("writing answered %d", status)
	}
	if _, err := os.Stat(filepath.Join(dir, "relative")); err != nil {
		t.Errorf("files have another working folder: %v", err)
	}
}

func TestAHomeThatTheImageSetsIsKept(t *testing.T) {
	d := start(t, options{mark: "supervisor", config: map[string]any{"env_from_process": true}, env: []string{"HOME=/srv"}})
	if r := d.run([]string{"sh", "-c", "echo $HOME"}, nil); string(r.stdout) != "/srv\n" {
		t.Errorf("got %q", r.stdout)
	}
}

func TestFoldersOfToolsComeBehindThePathOfTheImage(t *testing.T) {
	for _, test := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"PATH": "/own:/bin"}, "/own:/bin:/t/a:/t/b\n"},
		{nil, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/t/a:/t/b\n"},
	} {
		d := start(t, options{mark: "supervisor", config: map[string]any{"env": test.env, "path_append": []string{"/t/a", "/t/b"}}})
		if r := d.run([]string{"/bin/sh", "-c", "echo $PATH"}, nil); string(r.stdout) != test.want {
			t.Errorf("with %v got %q, %s", test.env, r.stdout, r.stderr)
		}
	}
}

func TestTheDeathNoteIsWrittenOverWhatCommandsPutThere(t *testing.T) {
	note := filepath.Join(t.TempDir(), "note")
	must(t, os.WriteFile(note, []byte(strings.Repeat("forged ", 500)), 0o666))
	d := start(t, options{mark: "supervisor", state: true, config: map[string]any{"death_file": note}})
	d.do("POST", "/v1/shutdown", body{"reason": "deleted", "detail": "by a test"})
	var told struct{ Reason, At, Detail string }
	until(t, "the note is JSON", func() bool {
		text, err := os.ReadFile(note)
		must(t, err)
		return json.Unmarshal(text, &told) == nil
	})
	if told.Reason != "deleted" || told.Detail != "by a test" {
		t.Errorf("%+v", told)
	}
}

func TestInstallCopiesTheProgramItself(t *testing.T) {
	own, err := os.Executable()
	must(t, err)
	target := filepath.Join(t.TempDir(), "sandboxd")
	command := exec.Command(own, "install", target)
	command.Env = append(os.Environ(), "SANDBOXD_UNDER_TEST=1", "GORACE=atexit_sleep_ms=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found, err := os.Stat(target)
	must(t, err)
	due, err := os.Stat(own)
	must(t, err)
	if found.Mode().Perm() != 0o755 || found.Size() != due.Size() {
		t.Errorf("mode %o, %d bytes of %d", found.Mode().Perm(), found.Size(), due.Size())
	}
	command = exec.Command(own, "install", filepath.Join(target, "x"))
	command.Env = append(os.Environ(), "SANDBOXD_UNDER_TEST=1", "GORACE=atexit_sleep_ms=0")
	if err := command.Run(); err == nil {
		t.Error("a path that cannot be written counts as success")
	}
}
