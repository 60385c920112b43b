package users

import (
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"
)

func database(t *testing.T, passwd, group string) Database {
	t.Helper()
	folder := t.TempDir()
	d := Database{Passwd: filepath.Join(folder, "passwd"), Group: filepath.Join(folder, "group")}
	for path, text := range map[string]string{d.Passwd: passwd, d.Group: group} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestLookupResolvesAsContainerRuntimesDo(t *testing.T) {
	d := database(t, "root:x:0:0:r:/root:/bin/sh\nbroken line\napp:x:1000:1001::/home/app:/bin/bash\nrel:x:7:7::home:\n123:x:55:55::/n:\n",
		"root:x:0:\napp:x:1001:\nwheel:x:10:root,app\nvideo:x:44:app\nbad:x:no:app\n")
	app := Identity{UID: 1000, GID: 1001, Groups: []uint32{10, 44}, Name: "app", Home: "/home/app", Shell: "/bin/bash"}
	withGroup := app
	withGroup.GID, withGroup.Groups = 44, nil
	cases := map[string]Identity{
		"app": app, "1000": app, "app:video": withGroup, "1000:44": withGroup,
		"4242":    {UID: 4242, Name: "4242", Home: "/"},
		"4242:12": {UID: 4242, GID: 12, Name: "4242", Home: "/"},
		"rel":     {UID: 7, GID: 7, Name: "rel", Home: "/"},
		"123":     {UID: 55, GID: 55, Name: "123", Home: "/n"},
	}
	for spec, due := range cases {
		got, err := d.Lookup(spec)
		if err != nil || !reflect.DeepEqual(got, due) {
			t.Errorf("%s: %+v, %v; due %+v", spec, got, err, due)
		}
	}
	for _, spec := range []string{"nobody", "app:none", "-1", "4294967295", "1:4294967295", ":5", "app:"} {
		if got, err := d.Lookup(spec); err == nil {
			t.Errorf("%q gave %+v", spec, got)
		}
	}
}

func TestAChangeOfTheDatabaseIsSeenAtOnce(t *testing.T) {
	d := database(t, "a:x:1:1::/:\n", "")
	if _, err := d.Lookup("b"); err == nil {
		t.Fatal("b is not there yet")
	}
	time.Sleep(20 * time.Millisecond) // beyond the grain of time stamps
	if err := os.WriteFile(d.Passwd, []byte("b:x:2:2::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lookup("b"); err != nil {
		t.Error(err)
	}
}

func TestADatabaseThatIsNoFileHoldsNothingUp(t *testing.T) {
	d := Database{Passwd: filepath.Join(t.TempDir(), "fifo"), Group: "/no/such"}
	if err := syscall.Mkfifo(d.Passwd, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Lookup("5"); err != nil || got.UID != 5 {
		t.Errorf("%+v, %v", got, err)
	}
}
