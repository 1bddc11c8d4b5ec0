package crash_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine/embedded"
	"setpoint.dev/setpoint/test/crash"
	"setpoint.dev/setpoint/watch"
)

var kills = flag.Int("kills", 100, "how often the storm is killed")

// The environment that makes this binary a storm: a folder, and per writer the
// number to go on with; nosync leaves syncing out.
const (
	stormDir    = "SETPOINT_STORM_DIR"
	stormStart  = "SETPOINT_STORM_START"
	stormNoSync = "SETPOINT_STORM_NOSYNC"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(stormDir); dir != "" {
		if err := storm(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// openStore keeps enough of the log for the watcher that comes after a crash,
// and little enough that compaction is at work while the crash happens.
func openStore(ctx context.Context, dir string, nosync bool) (*store.Store, error) {
	e, err := embedded.Open(ctx, embedded.Config{Dir: dir, NoSync: nosync})
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, store.Config{
		Engine:       e,
		Retention:    func(string) store.Retention { return store.Retention{Changes: 50_000} },
		CompactEvery: 50 * time.Millisecond,
	})
}

// storm is the child process. It ends by itself after a minute.
func storm(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := openStore(ctx, dir, os.Getenv(stormNoSync) != "")
	if err != nil {
		return err
	}
	starts := strings.Fields(os.Getenv(stormStart))
	err = crash.Storm(ctx, s, func(w int) (n int) {
		fmt.Sscan(starts[w], &n) //nolint:errcheck // the parent wrote it
		return n
	}, os.Stdout)
	return errors.Join(err, s.Close())
}

// start runs a storm on dir; its acknowledgements are read until it ends.
func start(t *testing.T, dir string, v *crash.Verdict, nosync bool) (child *exec.Cmd, begun <-chan struct{}, acks <-chan []crash.Ack) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child = exec.CommandContext(t.Context(), self)
	var starts []string
	for w := range crash.Writers {
		starts = append(starts, fmt.Sprint(v.Next(w)))
	}
	child.Env = append(os.Environ(), stormDir+"="+dir, stormStart+"="+strings.Join(starts, " "))
	if nosync {
		child.Env = append(child.Env, stormNoSync+"=1")
	}
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	first, all := make(chan struct{}), make(chan []crash.Ack, 1)
	go func() {
		r := bufio.NewReaderSize(out, 1<<16)
		_, err := r.Peek(1)
		close(first)
		if err != nil {
			all <- nil
			return
		}
		all <- crash.ReadAcks(r)
		_, _ = io.Copy(io.Discard, out)
	}()
	return child, first, all
}

// resume watches three tables from where an earlier watcher left off, and
// counts the acknowledged revisions that it is not told.
type resume struct {
	cursors map[string]store.Revision
}

func (r *resume) judge(ctx context.Context, s *store.Store, v *crash.Verdict, acks []crash.Ack, crashed time.Time) error {
	hub := watch.New(s, watch.Config{})
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(ctx) }()
	told := map[store.Revision]bool{}
	for _, resource := range []string{"things", "left", "right"} {
		w, err := hub.Watch(ctx, watch.Options{Resource: resource, After: r.cursors[resource], Bookmark: 20 * time.Millisecond})
		if err != nil {
			return err
		}
		last := r.cursors[resource]
		for r.cursors[resource] < s.Current() {
			batch, err := w.Next(ctx)
			if err != nil {
				return fmt.Errorf("resume %s after %d: %w", resource, r.cursors[resource], err)
			}
			for _, e := range batch.Events {
				if e.Rev() <= last {
					v.Missed++
				}
				last = e.Rev()
				told[last] = true
			}
			r.cursors[resource] = batch.Rev
		}
		w.Close()
	}
	for _, a := range acks {
		if !told[a.Rev] && a.At.Before(crashed) {
			v.Missed++
		}
	}
	cancel()
	return <-ended
}

// TestKill kills the storm at random moments, again and again on one folder.
func TestKill(t *testing.T) {
	if testing.Short() {
		*kills = min(*kills, 10)
	}
	dir := filepath.Join(t.TempDir(), "store")
	v := crash.NewVerdict()
	r := &resume{cursors: map[string]store.Revision{}}
	for range *kills {
		child, begun, acks := start(t, dir, v, false)
		<-begun
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		got := <-acks
		_ = child.Wait() // it was killed
		judge(t, dir, v, r, got, time.Now())
	}
	t.Logf("%d kills: %v", *kills, v)
	if v.Lost+v.Torn+v.Missed > 0 {
		t.Error("something acknowledged is gone")
	}
	if v.Present == 0 {
		t.Error("no kill hit a commit under way; the test shows nothing")
	}
}

// judge opens the folder a storm has left and looks.
func judge(t *testing.T, dir string, v *crash.Verdict, r *resume, acks []crash.Ack, crashed time.Time) {
	t.Helper()
	s, err := openStore(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Judge(t.Context(), s, acks, crashed); err != nil {
		t.Fatal(err)
	}
	if r != nil {
		if err := r.judge(t.Context(), s, v, acks, crashed); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
