package embedded_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
)

const dir = "/data"

// stormed returns a folder after many commits, compactions and flushes, and
// the revision it holds. A clean one was closed; the other was copied while it
// was open, after a moment without commits.
func stormed(t *testing.T, h history, clean bool) (*vfs.MemFS, engine.Revision) {
	t.Helper()
	fs := vfs.NewMem()
	for round := range 3 {
		e := open(t, embedded.Config{Dir: dir, FS: fs})
		for i := range 40 {
			h.commit(t, e, 1+i%7)
			if i%10 == 9 {
				if err := e.Compact(t.Context(), pods, e.Current()-30); err != nil {
					t.Fatal(err)
				}
			}
		}
		rev := e.Current()
		if round < 2 || clean {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			if round == 2 {
				return fs, rev
			}
			continue
		}
		time.Sleep(embedded.SealAfter * 4)
		fs = clone(t, fs)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		return fs, rev
	}
	panic("not reached")
}

// outcome opens a folder and reads all of it. It fails the test when the
// engine returns less or other than was acknowledged, without an error.
func outcome(t *testing.T, h history, fs vfs.FS, want engine.Revision, what string) (opened bool) {
	t.Helper()
	e, err := embedded.Open(t.Context(), embedded.Config{Dir: dir, FS: fs, Logger: quiet()})
	if err != nil {
		return false
	}
	defer func() {
		// A store with a damaged table may be unable to close in order.
		_ = e.Close()
	}()
	rev, damaged, err := h.verify(t.Context(), e)
	if err != nil && damaged {
		return false
	}
	if err != nil || rev != want {
		t.Errorf("%s: opens at %d (acknowledged %d): %v", what, rev, want, err)
	}
	return true
}

func TestMissingFile(t *testing.T) {
	h := history{keys: 20, padding: 2000}
	for _, clean := range []bool{true, false} {
		fs, rev := stormed(t, h, clean)
		if !outcome(t, h, clone(t, fs), rev, "all files") {
			t.Fatalf("clean %t: does not open", clean)
		}
		var refused, unharmed []string
		for _, path := range files(t, fs, dir) {
			copied := clone(t, fs)
			if err := copied.Remove(path); err != nil {
				t.Fatal(err)
			}
			if outcome(t, h, copied, rev, "without "+path) {
				unharmed = append(unharmed, path)
			} else {
				refused = append(refused, path)
			}
		}
		t.Logf("clean %t: refused without %s; whole without %s", clean, strings.Join(refused, " "), strings.Join(unharmed, " "))
	}
}

func TestFlippedByte(t *testing.T) {
	h := history{keys: 20, padding: 2000}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, clean := range []bool{true, false} {
		fs, rev := stormed(t, h, clean)
		refused, whole := 0, 0
		for _, path := range files(t, fs, dir) {
			b := read(t, fs, path)
			places := 40
			// Pebble looks for the flipped bit in a table's block by trying
			// all of them, which takes most of a second.
			if table := strings.HasSuffix(path, ".sst"); table && sampled() {
				places = 2
			} else if table || sampled() {
				places = 6
			}
			for range min(places, len(b)) {
				at := rnd.IntN(len(b))
				damaged := append([]byte(nil), b...)
				damaged[at] ^= 1 << rnd.IntN(8)
				copied := clone(t, fs)
				write(t, copied, path, damaged)
				if outcome(t, h, copied, rev, path) {
					whole++
				} else {
					refused++
				}
				if t.Failed() {
					t.Fatalf("%s flipped at %d of %d (clean %t)", path, at, len(b), clean)
				}
			}
		}
		t.Logf("clean %t: %d flips refused, %d without effect", clean, refused, whole)
	}
}

// TestTornTail cuts the log after every byte behind the last synced group but
// one, and at many places before: what opens is always whole transactions up
// to some group.
func TestTornTail(t *testing.T) {
	h := history{keys: 10, padding: 100}
	fs := vfs.NewMem()
	e := open(t, embedded.Config{Dir: dir, FS: fs})
	ends := map[engine.Revision]bool{0: true}
	for range 20 {
		h.commit(t, e, 3)
		ends[e.Current()] = true
	}
	before := clone(t, fs)
	acknowledged := e.Current()
	h.commit(t, e, 2)
	ends[e.Current()] = true
	after := clone(t, fs)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	var wal string
	for _, path := range files(t, after, dir) {
		if strings.HasSuffix(path, ".log") {
			wal = path
		}
	}
	synced, full := len(read(t, before, wal)), read(t, after, wal)
	if synced >= len(full) {
		t.Fatalf("log did not grow: %d, %d", synced, len(full))
	}
	step := 1
	if sampled() {
		step = 37
	}
	opened := 0
	for cut := 0; cut <= len(full); cut += step {
		if cut < synced-200 {
			cut += 60
		}
		fs := clone(t, after)
		write(t, fs, wal, full[:cut])
		e, err := embedded.Open(t.Context(), embedded.Config{Dir: dir, FS: fs, Logger: quiet()})
		if err != nil {
			t.Fatalf("cut at %d of %d: %v", cut, len(full), err)
		}
		rev, _, err := h.verify(t.Context(), e)
		if err != nil || !ends[rev] {
			t.Errorf("cut at %d of %d: at %d: %v", cut, len(full), rev, err)
		}
		if cut >= synced && rev < acknowledged {
			t.Errorf("cut at %d, synced up to %d: at %d, acknowledged %d", cut, synced, rev, acknowledged)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		opened++
	}
	t.Logf("%d cuts of a log of %d bytes, %d of them in its last group", opened, len(full), len(full)-synced)
}

// TestCutManifest cuts manifests at every byte. Pebble takes what is left for
// all there was; by then the logs are gone that could make up for it.
func TestCutManifest(t *testing.T) {
	h := history{keys: 20, padding: 2000}
	fs, rev := stormed(t, h, true)
	// Opening flushes the log; nothing is written after.
	e := open(t, embedded.Config{Dir: dir, FS: fs})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	refused, whole := 0, 0
	for _, path := range files(t, fs, dir) {
		if !strings.Contains(path, "/MANIFEST-") {
			continue
		}
		b := read(t, fs, path)
		step := 1
		if sampled() {
			step = 17
		}
		for cut := 0; cut < len(b); cut += step {
			copied := clone(t, fs)
			write(t, copied, path, b[:cut])
			if outcome(t, h, copied, rev, path) {
				whole++
			} else {
				refused++
			}
			if t.Failed() {
				t.Fatalf("%s cut at %d of %d", path, cut, len(b))
			}
		}
	}
	t.Logf("%d cuts refused, %d without effect", refused, whole)
}

func TestFolder(t *testing.T) {
	h := history{keys: 5, padding: 10}
	fresh := func(t *testing.T) *vfs.MemFS {
		fs := vfs.NewMem()
		e := open(t, embedded.Config{Dir: dir, FS: fs})
		h.commit(t, e, 3)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		return fs
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, fs *vfs.MemFS)
		want   []string // in the error; none: opens with nothing in it
	}{
		{"another format", func(t *testing.T, fs *vfs.MemFS) {
			write(t, fs, dir+"/FORMAT", []byte("setpoint-store 2\n"))
		}, []string{`version "2"`, "version 1"}},
		{"no database", func(t *testing.T, fs *vfs.MemFS) {
			if err := fs.RemoveAll(dir + "/pebble"); err != nil {
				t.Fatal(err)
			}
		}, []string{"not whole", "backup"}},
		{"somebody else's folder", func(t *testing.T, fs *vfs.MemFS) {
			if err := fs.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := fs.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, fs, dir+"/thesis.tex", []byte("x"))
		}, []string{"thesis.tex", "not a store"}},
		{"interrupted creation", func(t *testing.T, fs *vfs.MemFS) {
			write(t, fs, dir+"/FORMAT", []byte("setpoint-store 1\nnew\n"))
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := fresh(t)
			c.damage(t, fs)
			e, err := embedded.Open(t.Context(), embedded.Config{Dir: dir, FS: fs, Logger: quiet()})
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				h.mustHold(t, e, 0)
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				t.Fatal("opens")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}
