package ownership_test

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// BenchmarkWrite is what ownership costs in a write, by upstream's field manager
// and by ours: to objects with three owners, as they are stored.
func BenchmarkWrite(b *testing.B) {
	for _, w := range worlds(b) {
		file := map[string]string{"pod": "running-pod", "structural": "running-custom"}[w.name]
		if file == "" {
			continue
		}
		o := newWritten(b, w, file)
		b.Run(w.name, o.run)
	}
}

// written is an object as it is stored, and ways to write it.
type written struct {
	*world
	at    scope
	live  runtime.Object
	other runtime.Object // with another label
	ready runtime.Object // with another status
	wants *unstructured.Unstructured
	again *unstructured.Unstructured
}

func newWritten(b *testing.B, w *world, file string) *written {
	text, err := os.ReadFile(filepath.Join("testdata", file+".yaml"))
	if err != nil {
		b.Fatal(err)
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal(text, &fields); err != nil {
		b.Fatal(err)
	}
	whole(fields)
	s := &story{world: w}
	o := &written{world: w, at: w.scopes[0]}
	manifest := func(label string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x", "labels": map[string]any{"applied": label}}}}
		u.SetGroupVersionKind(o.at.kind)
		return u
	}
	o.again, o.wants = manifest("one"), manifest("two")
	empty, err := w.scheme.New(o.at.kind.GroupKind().WithVersion(o.version()))
	if err != nil {
		b.Fatal(err)
	}
	status, spec := fields["status"], fields
	delete(spec, "status")
	o.live = o.at.upstream.UpdateNoErrors(empty, s.internal(o.at, spec), "creator")
	a, err := meta.Accessor(o.live)
	if err != nil {
		b.Fatal(err)
	}
	a.SetUID(types.UID("uid"))
	if o.live, err = o.at.upstream.Apply(o.live, o.again.DeepCopy(), "applier", true); err != nil {
		b.Fatal(err)
	}
	reported := s.fieldsOf(b, o.at, o.live)
	reported["status"] = status
	o.live = w.scopes[1].upstream.UpdateNoErrors(o.live, s.internal(o.at, reported), "reporter")
	changed := s.fieldsOf(b, o.at, o.live)
	changed["metadata"].(map[string]any)["labels"].(map[string]any)["other"] = "label"
	o.other = s.internal(o.at, changed)
	reported = s.fieldsOf(b, o.at, o.live)
	reported["status"].(map[string]any)["phase"] = "Other"
	o.ready = s.internal(o.at, reported)
	return o
}

func (o *written) version() string {
	if o.untyped {
		return o.at.kind.Version
	}
	return runtime.APIVersionInternal
}

func (o *written) run(b *testing.B) {
	status := o.scopes[1]
	for _, op := range []struct {
		name     string
		upstream func()
		ours     func()
	}{
		{"label", func() { o.at.upstream.UpdateNoErrors(o.live, o.other.DeepCopyObject(), "labeler") }, func() { o.at.ours.Update(o.live, o.other.DeepCopyObject(), "labeler") }},
		{"status", func() { status.upstream.UpdateNoErrors(o.live, o.ready.DeepCopyObject(), "reporter") }, func() { status.ours.Update(o.live, o.ready.DeepCopyObject(), "reporter") }},
		{"nothing", func() { o.at.upstream.UpdateNoErrors(o.live, o.live.DeepCopyObject(), "labeler") }, func() { o.at.ours.Update(o.live, o.live.DeepCopyObject(), "labeler") }},
		{"apply", func() { _, _ = o.at.upstream.Apply(o.live, o.wants.DeepCopy(), "applier", true) }, func() { _, _ = o.at.ours.Apply(o.live, o.wants.DeepCopy(), "applier", true) }},
		{"apply again", func() { _, _ = o.at.upstream.Apply(o.live, o.again.DeepCopy(), "applier", true) }, func() { _, _ = o.at.ours.Apply(o.live, o.again.DeepCopy(), "applier", true) }},
	} {
		for by, write := range map[string]func(){"upstream": op.upstream, "ours": op.ours} {
			b.Run(op.name+"/"+by, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					write()
				}
			})
		}
	}
}
