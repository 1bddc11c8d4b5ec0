// Package store keeps bytes under keys and makes every change a revision.
//
// In come commits: one or several operations, each with a precondition and the
// provenance of the whole. Out come revisions, snapshots of a plane now or in
// the past, an object's history, and a feed of what was published. The store
// knows no kinds: a value is bytes, and what selection needs to know about it
// comes beside it as an Index.
//
// What always holds:
//
//   - A commit that returned a revision is durable; all of its operations are
//     there or none, at one revision.
//   - Revisions rise by one counter across all planes, also across restarts.
//   - What Current has returned, a later Snapshot shows.
//   - Snapshots and objects never change.
//
// A plane is one line of history with its own state. Main is kept by the
// engine; forks share their parent's state, live in memory, and go on with the
// same counter.
//
// One goroutine, the committer, changes state; it publishes each new version
// through one atomic pointer, so readers take no lock. See committer.go.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/memory"
)

// Revision numbers a change of the store.
type Revision = engine.Revision

// Main is the plane that the engine keeps.
const Main = "main"

// Errors of the store; ask with errors.Is. ErrCompacted, ErrNoSpace,
// ErrUnknown, ErrFailed and ErrClosed are the engine's own.
var (
	ErrCompacted = engine.ErrCompacted
	ErrNoSpace   = engine.ErrNoSpace
	ErrUnknown   = engine.ErrUnknown
	ErrFailed    = engine.ErrFailed
	ErrClosed    = engine.ErrClosed
	// ErrInvalid says that a request can never succeed as it is.
	ErrInvalid = errors.New("invalid request to the store")
	// ErrFuture says that a revision was asked for that does not exist yet.
	ErrFuture = errors.New("revision lies in the future")
	// ErrNoPlane says that the plane does not exist (any more).
	ErrNoPlane = errors.New("no such plane")
	// ErrPlaneExists says that a fork's name is taken.
	ErrPlaneExists = errors.New("plane exists")
)

// Config says how a store works. The zero value keeps everything in memory.
type Config struct {
	// Engine keeps plane main; nil means a new memory engine. The store owns
	// it from Open on and closes it.
	Engine engine.Engine
	// Retention says how long the past of a resource is kept; nil means
	// DefaultRetention for every resource.
	Retention func(resource string) Retention
	// CompactEvery is how often retention is looked at; 0 means a second.
	CompactEvery time.Duration
	// Logger hears of background trouble; nil means slog.Default.
	Logger *slog.Logger
}

// Store is an open store.
type Store struct {
	cfg    Config
	engine engine.Engine
	forks  *memory.Engine // the past of forks

	current atomic.Pointer[version]

	committer *committer
	compactor *compactor
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// Open loads what the engine holds and starts to take commits. When it fails
// the engine is closed.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Engine == nil {
		cfg.Engine = memory.New()
	}
	if cfg.Retention == nil {
		cfg.Retention = func(string) Retention { return DefaultRetention }
	}
	if cfg.CompactEvery <= 0 {
		cfg.CompactEvery = time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Store{cfg: cfg, engine: cfg.Engine, forks: memory.New()}
	v, err := load(ctx, s.engine)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.engine.Close())
	}
	s.current.Store(v)
	s.committer = newCommitter(s)
	s.compactor = newCompactor(s)
	ctx, s.stop = context.WithCancel(context.Background())
	s.running.Go(func() { s.committer.run(ctx) })
	s.running.Go(func() { s.compactor.run(ctx, v.rev) })
	return s, nil
}

// part is what one goroutine of the engine has loaded: objects of one table
// after the other, in key order.
type part struct {
	runs []tableRun
}

type tableRun struct {
	table   engine.Table
	objects []*Object
}

func (p *part) add(t engine.Table, o *Object) {
	if n := len(p.runs); n == 0 || p.runs[n-1].table != t {
		p.runs = append(p.runs, tableRun{table: t})
	}
	last := &p.runs[len(p.runs)-1]
	last.objects = append(last.objects, o)
}

// load reads the live objects of the engine into a first version.
func load(ctx context.Context, e engine.Engine) (*version, error) {
	var mu sync.Mutex // guards parts, not what they point to
	var parts []*part
	err := e.Load(ctx, func(n int, v engine.Version) error {
		o, err := storedObject(v.Key, v.Rev, v.Create, v.Value, v.RevAt, v.Index)
		if err != nil {
			return err
		}
		mu.Lock()
		for n >= len(parts) {
			parts = append(parts, &part{})
		}
		p := parts[n]
		mu.Unlock()
		p.add(engine.Table{Plane: v.Plane, Resource: v.Resource}, o)
		return nil
	})
	if err != nil {
		return nil, err
	}
	planes := newPlanes()
	planes.Set(&plane{name: Main, id: Main, tables: newTables()})
	d := newDraft(&version{planes: planes})
	for _, p := range parts {
		for _, r := range p.runs {
			if r.table.Plane != Main {
				return nil, fmt.Errorf("engine holds plane %q, which this version cannot open", r.table.Plane)
			}
			t := d.table(r.table)
			for _, o := range r.objects {
				t.load(o) // sorted input: appended without a search
			}
		}
	}
	return &version{rev: e.Current(), planes: d.planes, feed: newFeedNode(Batch{})}, nil
}

// Current is the newest published revision.
func (s *Store) Current() Revision { return s.current.Load().rev }

// Feed starts reading at what is published next, and returns the revision
// that the feed goes on from.
func (s *Store) Feed() (*Feed, Revision) {
	v := s.current.Load()
	return &Feed{node: v.feed, ended: s.committer.stopped}, v.rev
}

// Backup writes a consistent copy of plane main to a folder that does not
// exist yet, while commits go on. The copy holds everything that was
// acknowledged before the call and opens like the original.
func (s *Store) Backup(ctx context.Context, dir string) error {
	if err := s.engine.Backup(ctx, dir); err != nil {
		return fmt.Errorf("back up to %s: %w", dir, err)
	}
	return nil
}

// Close finishes the commits that are under way, refuses those that wait, and
// closes the engine. Snapshots stay readable; the past does not.
func (s *Store) Close() error {
	s.stop()
	s.running.Wait()
	return errors.Join(s.engine.Close(), s.forks.Close())
}

// keeper is the engine that holds a plane's own past.
func (s *Store) keeper(p *plane) engine.Engine {
	if p.origin == nil {
		return s.engine
	}
	return s.forks
}
