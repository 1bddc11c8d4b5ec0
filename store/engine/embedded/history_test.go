package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
)

var pods = engine.Table{Plane: "main", Resource: "pods"}

// history is a workload whose state at any revision can be computed, so that
// what an engine holds can be judged by its newest revision alone.
//
// Revision r writes the objects r%keys and (r+1)%keys in one transaction, and
// deletes the first of them instead when r%5 is 0.
type history struct {
	keys    int
	padding int
}

func key(k int) string { return fmt.Sprintf("key-%03d", k) }

func (h history) value(rev engine.Revision, k int) []byte {
	return fmt.Appendf(nil, "%d/%d/%s", rev, k, strings.Repeat(string(rune('a'+int(rev)%26)), h.padding))
}

func (h history) deletes(rev engine.Revision) bool { return rev%5 == 0 }

// last returns the newest revision not above rev that touched object k, and
// whether it deleted it; 0 if none did.
func (h history) last(rev engine.Revision, k int) (engine.Revision, bool) {
	for r := rev; r > 0 && r > rev-engine.Revision(h.keys)-1; r-- {
		if int(r)%h.keys == k {
			return r, h.deletes(r)
		}
		if (int(r)+1)%h.keys == k {
			return r, false
		}
	}
	return 0, false
}

func (h history) txn(rev engine.Revision) engine.Txn {
	txn := engine.Txn{Rev: rev, Time: int64(rev), Provenance: []byte("p")}
	for i, k := range []int{int(rev) % h.keys, (int(rev) + 1) % h.keys} {
		prev, deleted := h.last(rev-1, k)
		c := engine.Change{Plane: pods.Plane, Resource: pods.Resource, Key: key(k), Create: rev, RevAt: 0, Index: []byte("i")}
		if !deleted {
			c.Prev = prev
		}
		if i == 0 && h.deletes(rev) {
			c.Delete, c.RevAt = true, -1
		} else {
			c.Value = h.value(rev, k)
		}
		txn.Changes = append(txn.Changes, c)
	}
	return txn
}

func (h history) group(after engine.Revision, n int) []engine.Txn {
	group := make([]engine.Txn, n)
	for i := range group {
		group[i] = h.txn(after + engine.Revision(i) + 1)
	}
	return group
}

// verify reads everything and returns an error unless the engine holds exactly
// what the history makes of its newest revision. damaged says that the error
// came from the engine rather than from a comparison.
func (h history) verify(ctx context.Context, e engine.Engine) (rev engine.Revision, damaged bool, err error) {
	rev = e.Current()
	tables, err := e.Tables(ctx)
	if err != nil {
		return rev, true, err
	}
	floor := tables[pods]
	want := make(map[string]string)
	for k := range h.keys {
		if r, deleted := h.last(rev, k); r > 0 && !deleted {
			want[key(k)] = string(h.value(r, k))
		}
	}
	n := 0
	check := func(v *engine.Version) error {
		n++
		if want[v.Key] != string(v.Value) {
			return fmt.Errorf("at %d %s has version %d, %.20q, want %.20q", rev, v.Key, v.Rev, v.Value, want[v.Key])
		}
		return nil
	}
	loaded := make(chan engine.Version, h.keys+1)
	if err := e.Load(ctx, func(_ int, v engine.Version) error {
		v.Key, v.Value = strings.Clone(v.Key), bytes.Clone(v.Value)
		loaded <- v
		return nil
	}); err != nil {
		return rev, true, err
	}
	close(loaded)
	for v := range loaded {
		if err := check(&v); err != nil {
			return rev, false, err
		}
	}
	if n != len(want) {
		return rev, false, fmt.Errorf("at %d Load gives %d objects, want %d", rev, n, len(want))
	}
	for v, err := range e.Scan(ctx, pods, "", "", 0) {
		if err != nil {
			return rev, true, err
		}
		if err := check(&v); err != nil {
			return rev, false, err
		}
	}
	if n != 2*len(want) {
		return rev, false, fmt.Errorf("at %d Scan gives %d objects, want %d", rev, n-len(want), len(want))
	}
	at, seq := floor, 0
	for entry, err := range e.Log(ctx, pods, floor) {
		if err != nil {
			return rev, true, err
		}
		if seq %= 2; seq == 0 {
			at++
		}
		if want := h.txn(at).Changes[seq]; entry.Rev != at || entry.Key != want.Key || entry.Delete != want.Delete || entry.Prev != want.Prev {
			return rev, false, fmt.Errorf("log after %d has %+v where %d %+v belongs", floor, entry, at, want)
		}
		seq++
		if _, err := e.Get(ctx, pods, entry.Key, entry.Rev); err != nil {
			return rev, true, err
		}
	}
	if at != rev || seq == 1 {
		return rev, false, fmt.Errorf("log ends at %d, change %d, want %d", at, seq, rev)
	}
	for k := range h.keys {
		for _, err := range e.Versions(ctx, pods, key(k)) {
			if err != nil {
				return rev, true, err
			}
		}
	}
	return rev, false, nil
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t *testing.T, cfg embedded.Config) *embedded.Engine {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	e, err := embedded.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// commit extends the history by n transactions in one group.
func (h history) commit(t *testing.T, e engine.Engine, n int) {
	t.Helper()
	if err := e.Commit(t.Context(), h.group(e.Current(), n), 0); err != nil {
		t.Fatal(err)
	}
}

func (h history) mustHold(t *testing.T, e engine.Engine, want engine.Revision) {
	t.Helper()
	rev, _, err := h.verify(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if rev != want {
		t.Fatalf("engine is at %d, want %d", rev, want)
	}
}

// clone copies the folder of a memory file system into a fresh one.
func clone(t *testing.T, from *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	to := vfs.NewMem()
	if ok, err := vfs.Clone(from, to, dir, dir); err != nil || !ok {
		t.Fatal(ok, err)
	}
	return to
}

func files(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			all = append(all, files(t, fs, path)...)
		} else {
			all = append(all, path)
		}
	}
	return all
}

func read(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(append([]byte(nil), b...))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// sampled says that a test may leave out most of many similar cases.
func sampled() bool { return testing.Short() || raceDetector }
