// Package source gives a node what its pods refer to: config maps, secrets and
// tokens of service accounts.
//
// In come pods (Use, Forget) and a client that may read what they name; out
// come objects by name, and a call when one of them changes. There is one watch
// for each object, from the first pod that uses it to the last; an object that
// is immutable is read once and watched no more. What always holds: an object
// that no pod uses is not read, and objects that are handed out are shared, so
// nobody changes them.
package source

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// patience is how long a reader waits for the first answer about an object.
// Compat: it is a kubelet's.
const patience = time.Second

var (
	configMaps = schema.GroupResource{Resource: "configmaps"}
	secrets    = schema.GroupResource{Resource: "secrets"}
)

// Config says where objects come from and who is told about them.
type Config struct {
	// Client asks as the node. It is needed.
	Client kubernetes.Interface
	// Changed is told which pods use an object that has changed. It must not
	// block.
	Changed func(pods []types.UID)
	// Logger is told about tokens that could not be renewed in time.
	Logger *slog.Logger
}

// Source knows the objects of the pods in use.
type Source struct {
	cfg    Config
	tokens tokens

	ctx   context.Context
	stop  context.CancelFunc
	alive sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	uses    map[types.UID][]reference
	objects map[reference]*object
}

// New returns a source that watches nothing yet.
func New(cfg Config) *Source {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Source{
		cfg: cfg, ctx: ctx, stop: stop, uses: map[types.UID][]reference{}, objects: map[reference]*object{},
		tokens: tokens{requests: map[tokenKey]*token{}},
	}
}

// Run ends all watches when ctx ends, and returns after them.
func (s *Source) Run(ctx context.Context) error {
	<-ctx.Done()
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.alive.Wait()
	return nil
}

// Use says that a pod needs what it refers to now, and nothing else.
func (s *Source) Use(pod *corev1.Pod) { s.set(pod.UID, references(pod)) }

// Forget says that a pod needs nothing any more.
func (s *Source) Forget(pod *corev1.Pod) {
	s.set(pod.UID, nil)
	s.tokens.forget(pod.UID)
}

func (s *Source) set(uid types.UID, want []reference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range want {
		if s.objects[ref] == nil {
			s.objects[ref] = s.watchLocked(ref)
		}
		s.objects[ref].users[uid] = true
	}
	for _, ref := range s.uses[uid] {
		if slices.Contains(want, ref) {
			continue
		}
		delete(s.objects[ref].users, uid)
		if len(s.objects[ref].users) == 0 {
			s.objects[ref].stop()
			delete(s.objects, ref)
		}
	}
	if s.uses[uid] = want; len(want) == 0 {
		delete(s.uses, uid)
	}
}

// ConfigMap returns a config map that a pod in use refers to.
func (s *Source) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return get[*corev1.ConfigMap](ctx, s, reference{configMaps, namespace, name})
}

// Secret returns a secret that a pod in use refers to.
func (s *Source) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return get[*corev1.Secret](ctx, s, reference{secrets, namespace, name})
}

func get[T any](ctx context.Context, s *Source, ref reference) (T, error) {
	var none T
	s.mu.Lock()
	o := s.objects[ref]
	s.mu.Unlock()
	if o == nil {
		return none, fmt.Errorf("object %q/%q not registered", ref.namespace, ref.name)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-o.known:
	case <-timer.C:
		return none, fmt.Errorf("failed to sync %s cache: timed out waiting for the condition", singular[ref.resource])
	case <-ctx.Done():
		return none, ctx.Err()
	}
	if held, ok := o.now().(T); ok {
		return held, nil
	}
	return none, apierrors.NewNotFound(schema.GroupResource{Resource: singular[ref.resource]}, ref.name)
}

// singular is how errors name what is missing.
var singular = map[schema.GroupResource]string{configMaps: "configmap", secrets: "secret"}

// users returns the pods that use what ref names.
func (s *Source) users(ref reference) []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var uids []types.UID
	if o := s.objects[ref]; o != nil {
		for uid := range o.users {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}
