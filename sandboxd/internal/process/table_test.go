package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"orchard/sandboxd/internal/mark"
	"orchard/sandboxd/internal/output"
	"orchard/sandboxd/internal/reap"
	"orchard/sandboxd/internal/wire"
)

// TestMain lets this binary be the supervisor of the commands that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(mark.Supervise())
	}
	os.Exit(m.Run())
}

// reaper is the only one: a second in the same process would steal its children.
var reaper = sync.OnceValue(func() *reap.Reaper { return reap.New(nil) })

type noActivity struct{}

func (noActivity) Begin() func() { return func() {} }

func newTable(t *testing.T, limit int64) *Table {
	t.Helper()
	maker, err := mark.NewSupervisors(reaper())
	if err != nil {
		t.Fatal(err)
	}
	store, err := output.NewStore(nil, limit)
	if err != nil {
		t.Fatal(err)
	}
	return NewTable(&Settings{Maker: maker, Store: store, Activity: noActivity{}, Workdir: "/", Shell: "sh"})
}

func (t *Table) finishOne(test *testing.T, id, script string) *Process {
	test.Helper()
	q := &request{ID: id, Shell: &script}
	if err := q.check(); err != nil {
		test.Fatal(err)
	}
	p, _, err := t.Start(q)
	if err != nil {
		test.Fatal(err)
	}
	<-p.exited
	until(test, "it is in the list of the finished, and all it wrote is kept", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return slices.Contains(t.finished, p) && p.settled()
	})
	return p
}

// until waits for something that happens soon, which a minute bounds only to end a hang.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

func expired(t *Table, id string) bool {
	_, err := t.find(id)
	var p *wire.Problem
	return errors.As(err, &p) && p.Status == 410
}

func TestAnExpiredResultIsGoneButItsIDNeverRunsAgain(t *testing.T) {
	table := newTable(t, 1<<20)
	for i := range 3 {
		table.finishOne(t, fmt.Sprintf("p%d", i), "echo x")
	}
	table.trim(time.Now().Add(keepFor + time.Minute))
	if !expired(table, "p0") || !expired(table, "p1") {
		t.Error("the old results are still there")
	}
	script := "echo again"
	_, created, err := table.Start(&request{ID: "p0", Shell: &script})
	var p *wire.Problem
	if created || !errors.As(err, &p) || p.Status != 410 {
		t.Errorf("the id of an expired result ran again: %v, %v", created, err)
	}
}

func TestTheOldestOutputsGoWhenAllTogetherAreTooLarge(t *testing.T) {
	table := newTable(t, 1<<20)
	for i := range 8 {
		table.finishOne(t, fmt.Sprintf("p%d", i), "head -c 1000000 /dev/zero")
	}
	table.trim(time.Now())
	if !expired(table, "p0") || expired(table, "p7") {
		t.Error("the oldest should be gone and the newest there")
	}
	if held := table.settings.Store.Pressed(); held {
		t.Error("too much is still held")
	}
}

func TestAFailedStartLeavesItsIDFree(t *testing.T) {
	table := newTable(t, 1<<20)
	argv := []string{"/no/such/program"}
	if _, _, err := table.Start(&request{ID: "x", Argv: &argv}); err == nil {
		t.Fatal("it started")
	}
	if p := table.finishOne(t, "x", "exit 4"); p.status().ExitCode == nil || *p.status().ExitCode != 4 {
		t.Errorf("%+v", p.status())
	}
}
