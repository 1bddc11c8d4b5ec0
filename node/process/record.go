//go:build linux

package process

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/process/proc"
	"setpoint.dev/setpoint/node/process/supervise"
)

// message is a CRI message in a record.
type message[T any, P interface {
	*T
	proto.Message
}] struct{ P P }

// MarshalJSON writes the message.
func (m message[T, P]) MarshalJSON() ([]byte, error) { return protojson.Marshal(m.P) }

// UnmarshalJSON reads the message. Fields of later versions are passed over.
func (m *message[T, P]) UnmarshalJSON(b []byte) error {
	m.P = new(T)
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m.P)
}

type (
	sandboxConfig   = message[runtimeapi.PodSandboxConfig, *runtimeapi.PodSandboxConfig]
	containerConfig = message[runtimeapi.ContainerConfig, *runtimeapi.ContainerConfig]
)

// sandbox is a pod: a record, and a state.
type sandbox struct {
	ID        string        `json:"id"`
	Config    sandboxConfig `json:"config"`
	Handler   string        `json:"handler,omitempty"`
	CreatedAt time.Time     `json:"createdAt"`
	// Stopped says that it has been, Boot on which run of the machine it was made.
	Stopped bool   `json:"stopped,omitempty"`
	Boot    string `json:"boot"`

	dir string
}

func (s *sandbox) ready() bool { return !s.Stopped && s.Boot == proc.Boot() }

// name tells a sandbox from others.
func (s *sandbox) name() string {
	m := s.Config.P.GetMetadata()
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

func (s *sandbox) save() error { return supervise.WriteFile(filepath.Join(s.dir, "sandbox.json"), s) }

// container is a container: a record, and what is known of its process.
type container struct {
	ID      string          `json:"id"`
	Sandbox string          `json:"sandbox"`
	Config  containerConfig `json:"config"`
	// Image is the ID of its image, and Ref what the image is pinned by.
	Image     string    `json:"image"`
	Ref       string    `json:"ref"`
	CreatedAt time.Time `json:"createdAt"`
	// Spec is what its supervisor is told, but for its control group.
	Spec supervise.Spec `json:"spec"`
	// Group is the path of its control group.
	Group string `json:"group,omitempty"`
	// StopSignal asks it to end.
	StopSignal int `json:"stopSignal"`
	// User is who it runs as.
	User supervise.User `json:"user"`

	dir  string
	ops  sync.Mutex // one start or removal at a time
	done chan struct{}
	// These are guarded by the runtime's lock.
	started *supervise.Started
	exit    *supervise.Exit
	sample  sample
}

// containerName tells a container from others.
func containerName(m *runtimeapi.ContainerMetadata, s *sandbox) string {
	return fmt.Sprintf("%s_%s_%d", m.GetName(), s.name(), m.GetAttempt())
}

func (c *container) save() error {
	return supervise.WriteFile(filepath.Join(c.dir, "container.json"), c)
}

// state is that of the container, in CRI's words.
func (c *container) state() runtimeapi.ContainerState {
	switch {
	case c.exit != nil:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case c.started != nil:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return runtimeapi.ContainerState_CONTAINER_CREATED
}

// newID is a name that nothing else has.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// adopt reads the records of an earlier runtime and goes on with what runs.
func (r *Runtime) adopt() error {
	err := each(filepath.Join(r.cfg.Dir, "sandboxes"), func(dir string) error {
		s := &sandbox{dir: dir}
		if err := supervise.ReadFile(filepath.Join(dir, "sandbox.json"), s); err != nil {
			return err
		}
		r.sandboxes[s.ID], r.names[s.name()] = s, s.ID
		return nil
	})
	if err != nil {
		return err
	}
	return each(filepath.Join(r.cfg.Dir, "containers"), func(dir string) error {
		c := &container{dir: dir, done: make(chan struct{})}
		if err := supervise.ReadFile(filepath.Join(dir, "container.json"), c); err != nil {
			return err
		}
		s := r.sandboxes[c.Sandbox]
		if s == nil {
			return fmt.Errorf("container of a sandbox that is gone: %w", fs.ErrNotExist)
		}
		r.containers[c.ID], r.names[containerName(c.Config.P.GetMetadata(), s)] = c, c.ID
		return r.resume(c)
	})
}

// each visits the folders of records. One whose record was not written whole has
// had no effect, and is removed.
func each(dir string, visit func(dir string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		one := filepath.Join(dir, e.Name())
		err := visit(one)
		_, half := errors.AsType[*json.SyntaxError](err)
		if errors.Is(err, fs.ErrNotExist) || half {
			err = os.RemoveAll(one)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resume finds out how a container is, and waits for its end.
func (r *Runtime) resume(c *container) error {
	if supervise.Alive(c.dir) {
		r.watch(c)
		return nil
	}
	started, err := supervise.ReadStarted(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		c.started = started
	}
	if exit, err := supervise.ReadExit(c.dir); err == nil {
		c.exit = exit
		close(c.done)
		return nil
	}
	if c.started != nil {
		r.settle(c)
	}
	return nil
}
