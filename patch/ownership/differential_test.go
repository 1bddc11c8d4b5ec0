package ownership_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

var sequences = flag.Int("sequences", 6, "random sequences of writes for each kind that are compared with upstream's field manager")

const (
	writes   = 40 // in one sequence
	managers = 13 // enough that some are joined
)

// TestSameAsUpstream runs random sequences of writes by several managers through
// upstream's field manager and ours, and compares what comes out of each write.
func TestSameAsUpstream(t *testing.T) {
	for _, w := range worlds(t) {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			var done story
			for seed := range uint64(*sequences) {
				s := &story{world: w, rand: rand.New(rand.NewPCG(seed, 7))}
				s.run(t, fmt.Sprintf("sequence %d", seed))
				done.add(s)
				if t.Failed() {
					return
				}
			}
			t.Logf("%d sequences, %d writes compared (%d applies, of which %d conflicts and %d other errors; %d updates without a record), 0 differences",
				*sequences, done.compared, done.applies, done.conflicts, done.refused, done.unowned)
		})
	}
}

func FuzzSequence(f *testing.F) {
	all := worlds(f)
	for i := range all {
		f.Add(uint8(i), uint64(1), uint64(2))
	}
	f.Fuzz(func(t *testing.T, which uint8, a, b uint64) {
		s := &story{world: all[int(which)%len(all)], rand: rand.New(rand.NewPCG(a, b))}
		s.run(t, s.name)
	})
}

// story is one object's life.
type story struct {
	*world
	rand *rand.Rand
	live runtime.Object // internal; nil before it is created
	rev  int
	// applied is what each manager has applied last.
	applied map[string]map[string]any

	compared, applies, conflicts, refused, unowned int
}

func (s *story) add(of *story) {
	s.compared += of.compared
	s.applies += of.applies
	s.conflicts += of.conflicts
	s.refused += of.refused
	s.unowned += of.unowned
}

func (s *story) run(t *testing.T, name string) {
	t.Helper()
	for i := range writes {
		if s.one(t, fmt.Sprintf("%s, write %d", name, i)); t.Failed() {
			return
		}
	}
}

// chance is true once in so many times.
func (s *story) chance(in int) bool { return s.rand.IntN(in) == 0 }

// one makes one write by both and compares.
func (s *story) one(t *testing.T, name string) {
	t.Helper()
	at := s.scopes[s.rand.IntN(len(s.scopes))]
	if s.live == nil && at.subresource != "" {
		at = s.scopes[0]
	}
	live := s.live
	if live == nil {
		live = s.empty(t, at)
	}
	manager := fmt.Sprintf("m%d", s.rand.IntN(managers))
	if s.chance(6) {
		manager = "kubectl"
	}
	var want, got runtime.Object
	var wantErr, gotErr error
	var did string
	before := live.DeepCopyObject()
	if s.chance(2) {
		config, force := s.manifest(at, manager), s.chance(2)
		did = fmt.Sprintf("%s applies, force %v, %s %s: %s", manager, force, at.kind.Version, at.subresource, text(config))
		s.applies++
		want, wantErr = at.upstream.Apply(live.DeepCopyObject(), config.DeepCopy(), manager, force)
		got, gotErr = at.ours.Apply(live, config.DeepCopy(), manager, force)
	} else {
		obj := s.changed(t, at, live)
		if obj == nil {
			return
		}
		did = fmt.Sprintf("%s updates, %s %s: %s", manager, at.kind.Version, at.subresource, text(obj))
		want = at.upstream.UpdateNoErrors(live.DeepCopyObject(), obj.DeepCopyObject(), manager)
		got = at.ours.Update(live, obj, manager)
		if a, err := meta.Accessor(got); err == nil && a.GetManagedFields() == nil {
			s.unowned++
		}
	}
	s.compared++
	if diff := cmp.Diff(message(wantErr), message(gotErr)); diff != "" {
		t.Fatalf("%s: errors differ: %s\nlive %s\n%s", name, diff, text(live), did)
	}
	if !apiequality.Semantic.DeepEqual(before, live) {
		t.Fatalf("%s: the stored object has been changed: %s\n%s", name, cmp.Diff(text(before), text(live)), did)
	}
	if wantErr != nil {
		if apierrors.IsConflict(wantErr) {
			s.conflicts++
		} else {
			s.refused++
		}
		return
	}
	s.stamp(t, want)
	s.stamp(t, got)
	if diff := cmp.Diff(text(want), text(got)); diff != "" {
		t.Fatalf("%s: %s\nlive %s\n%s", name, diff, text(live), did)
	}
	if !apiequality.Semantic.DeepEqual(want, got) {
		t.Fatalf("%s: the objects differ: %s\nlive %s\n%s", name, cmp.Diff(want, got), text(live), did)
	}
	s.store(t, at, want)
}

// message is an error as clients see it. Upstream leaves to chance the order of
// causes, and which of the fields that are in no schema is found first.
func message(err error) string {
	if err == nil {
		return ""
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		said, _, found := strings.Cut(err.Error(), "field not declared in schema")
		if found {
			said, _, _ = strings.Cut(said, "typed: ")
			said, _, _ = strings.Cut(said, "): ")
		}
		lines := strings.Split(said, "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	s := status.ErrStatus.DeepCopy()
	if s.Details != nil {
		slices.SortFunc(s.Details.Causes, func(a, b metav1.StatusCause) int {
			return strings.Compare(a.Message+a.Field, b.Message+b.Field)
		})
	}
	return text(s)
}

func text(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// clock is the time of the story's writes.
var clock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// stamp puts the story's time in place of the real one.
func (s *story) stamp(t *testing.T, obj runtime.Object) {
	a, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	entries := a.GetManagedFields()
	for i := range entries {
		if at := entries[i].Time; at != nil && at.After(time.Now().Add(-time.Hour)) {
			entries[i].Time = &metav1.Time{Time: clock.Add(time.Duration(s.compared/3) * time.Second)}
		}
	}
	if entries != nil {
		a.SetManagedFields(entries)
	}
}

// store makes an object the stored one, as if it had been written and read.
func (s *story) store(t *testing.T, at scope, obj runtime.Object) {
	a, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	s.rev++
	a.SetUID(types.UID("uid"))
	a.SetName("x")
	a.SetResourceVersion(fmt.Sprint(s.rev))
	versioned := s.fieldsOf(t, at, obj)
	if s.live = s.internal(at, versioned); s.live == nil {
		t.Fatalf("it cannot be read back: %s", text(versioned))
	}
}

func (s *story) empty(t *testing.T, at scope) runtime.Object {
	kind := at.kind
	if !s.untyped {
		kind.Version = runtime.APIVersionInternal
	}
	obj, err := s.scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// fieldsOf are an object's fields, in a version.
func (s *story) fieldsOf(t testing.TB, at scope, obj runtime.Object) map[string]any {
	v, err := s.scheme.ConvertToVersion(obj, at.kind.GroupVersion())
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := v.(*unstructured.Unstructured); ok {
		return u.DeepCopy().Object
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	if err != nil {
		t.Fatal(err)
	}
	m["apiVersion"], m["kind"] = at.kind.ToAPIVersionAndKind()
	return m
}

// internal is an object as servers hold it, nil for fields that make no object.
func (s *story) internal(at scope, fields map[string]any) runtime.Object {
	if s.untyped {
		u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(fields)}
		u.SetGroupVersionKind(at.kind)
		return u
	}
	obj, err := s.scheme.New(at.kind)
	if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(fields, obj) != nil {
		return nil
	}
	s.scheme.Default(obj)
	if obj, err = s.scheme.ConvertToVersion(obj, runtime.InternalGroupVersioner); err != nil {
		return nil
	}
	return obj
}

// manifest is something to apply, often what the manager has applied before and
// more, now and then something that cannot be.
func (s *story) manifest(at scope, manager string) *unstructured.Unstructured {
	m := map[string]any{}
	if last := s.applied[manager]; last != nil && !s.chance(3) {
		m = runtime.DeepCopyJSON(last)
	}
	for range s.rand.IntN(4) {
		s.join(m, s.fragment(s.rand, at.kind.Version), s.chance(10))
	}
	metadata, ok := m["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		m["metadata"] = metadata
	}
	metadata["name"] = "x"
	if s.applied == nil {
		s.applied = map[string]map[string]any{}
	}
	s.applied[manager] = runtime.DeepCopyJSON(m)
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(at.kind)
	switch s.rand.IntN(60) {
	case 0:
		m["spec"] = "text"
	case 1:
		m["unknown"] = map[string]any{"a": int64(1)}
	case 2:
		metadata["managedFields"] = []any{map[string]any{"manager": "x"}}
	case 3:
		u.SetKind("Other")
	case 4:
		m["spec"] = nil
	}
	return u
}

// changed is a new version of the stored object, nil for one that cannot be.
func (s *story) changed(t *testing.T, at scope, live runtime.Object) runtime.Object {
	fields := s.fieldsOf(t, at, live)
	metadata, _ := fields["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		fields["metadata"] = metadata
	}
	metadata["name"] = "x"
	for range s.rand.IntN(4) {
		s.join(fields, s.fragment(s.rand, at.kind.Version), s.chance(5))
	}
	for range s.rand.IntN(3) {
		s.lose(fields)
	}
	fields["apiVersion"], fields["kind"] = at.kind.ToAPIVersionAndKind()
	entries, _ := metadata["managedFields"].([]any)
	switch s.rand.IntN(24) {
	case 0:
		metadata["managedFields"] = []any{map[string]any{}}
	case 1:
		metadata["managedFields"] = []any{}
	case 2, 3:
		delete(metadata, "managedFields")
	case 4:
		if len(entries) > 0 {
			entries[0].(map[string]any)["operation"] = "Guess"
		}
	case 5:
		if len(entries) > 0 {
			entries[s.rand.IntN(len(entries))].(map[string]any)["apiVersion"] = s.kinds[s.rand.IntN(len(s.kinds))].GroupVersion().String()
		}
	case 6:
		if len(entries) > 0 {
			entries[s.rand.IntN(len(entries))].(map[string]any)["apiVersion"] = "gone/v9"
		}
	case 7:
		if len(entries) > 0 {
			entries[0].(map[string]any)["fieldsV1"] = map[string]any{
				"f:metadata": map[string]any{"f:managedFields": map[string]any{}, "f:resourceVersion": map[string]any{}, "f:labels": map[string]any{"f:a": map[string]any{}}},
				"f:spec":     map[string]any{".": map[string]any{}, "f:whole": map[string]any{"f:a": map[string]any{}}, "f:containers": map[string]any{}, "z:unknown": map[string]any{}},
			}
		}
	case 8:
		metadata["managedFields"] = entries[:len(entries)/2]
	case 9:
		if len(entries) > 0 {
			delete(entries[0].(map[string]any), "fieldsV1")
		}
	}
	return s.internal(at, fields)
}

// join puts one tree of fields into another. Lists are joined by position or put
// in place, or appended, so that things are there twice now and then.
func (s *story) join(into, from map[string]any, appends bool) {
	for _, k := range slices.Sorted(maps.Keys(from)) {
		old, isMap := into[k].(map[string]any)
		fresh, both := from[k].(map[string]any)
		oldList, isList := into[k].([]any)
		freshList, bothLists := from[k].([]any)
		switch {
		case isMap && both:
			s.join(old, fresh, appends)
		case isList && bothLists && appends:
			into[k] = append(oldList, freshList...)
		case isList && bothLists && s.chance(2):
			into[k] = s.joinLists(oldList, freshList)
		default:
			into[k] = from[k]
		}
	}
}

// joinLists joins two lists of items that have names; others are replaced.
func (s *story) joinLists(old, fresh []any) []any {
	for _, item := range fresh {
		i := slices.IndexFunc(old, func(o any) bool { return known(o) != nil && known(o) == known(item) })
		if i < 0 {
			old = append(old, item)
			continue
		}
		if a, ok := old[i].(map[string]any); ok {
			s.join(a, item.(map[string]any), false)
		}
	}
	return old
}

// known is what an item of a list is known by, nil for nothing.
func known(item any) any {
	m, ok := item.(map[string]any)
	if !ok {
		return item
	}
	for _, key := range []string{"name", "type", "uid", "id", "port", "containerPort", "ip", "key", "kind", "topologyKey"} {
		if m[key] != nil {
			return fmt.Sprint(key, m[key])
		}
	}
	return nil
}

// lose takes something away.
func (s *story) lose(fields map[string]any) {
	for {
		keys := slices.Sorted(maps.Keys(fields))
		if len(keys) == 0 {
			return
		}
		key := keys[s.rand.IntN(len(keys))]
		if key == "managedFields" || key == "apiVersion" || key == "kind" || key == "uid" {
			return
		}
		switch below := fields[key].(type) {
		case map[string]any:
			if len(below) > 0 && !s.chance(4) {
				fields = below
				continue
			}
		case []any:
			if len(below) > 0 && !s.chance(4) {
				i := s.rand.IntN(len(below))
				if m, ok := below[i].(map[string]any); ok && s.chance(2) {
					fields = m
					continue
				}
				fields[key] = slices.Delete(below, i, i+1)
				return
			}
		}
		delete(fields, key)
		return
	}
}
