package kinds_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/kinds"
)

func row(group, name, version string) *kinds.Resource {
	return &kinds.Resource{Group: group, Name: name, Versions: []string{version}}
}

func told(all []*kinds.Resource) (names []string) {
	for _, r := range all {
		names = append(names, r.Group+"/"+r.Versions[0]+"/"+r.Name)
	}
	return names
}

func TestAListIsInOrder(t *testing.T) {
	first := kinds.NewList([]*kinds.Resource{row("z", "bs", "v1"), row("z", "as", "v1")})
	l := first
	put := func(group, name string, versions ...string) {
		var rows []*kinds.Resource
		for _, v := range versions {
			rows = append(rows, row(group, name, v))
		}
		l = l.Put(schema.GroupResource{Group: group, Resource: name}, rows...)
	}
	put("b.example.org", "things", "v1alpha1", "v1", "v2beta1")
	put("b.example.org", "others", "v1")
	put("b", "as", "v1")
	put("a", "gones", "v1")
	put("z", "as", "v1", "v2") // v1 is there already
	put("z", "cs", "v1")
	before := l
	put("a", "gones")
	want := []string{
		"z/v1/bs", "z/v1/as", "b/v1/as", "b.example.org/v1/others", "b.example.org/v1/things", "b.example.org/v2beta1/things",
		"b.example.org/v1alpha1/things", "z/v2/as", "z/v1/cs",
	}
	if diff := cmp.Diff(want, told(l.All())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if before.Find("a", "v1", "gones") == nil || l.Find("a", "v1", "gones") != nil {
		t.Error("a list that another was made from has changed, or the other has not")
	}
	if diff := cmp.Diff(want[:2], told(first.All())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestAListFindsWhatWasPut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	l := kinds.NewList([]*kinds.Resource{row("g0", "r0", "v1")})
	want := map[schema.GroupResource][]*kinds.Resource{}
	for range 2000 {
		name := schema.GroupResource{Group: fmt.Sprint("g", rng.IntN(5)), Resource: fmt.Sprint("r", rng.IntN(40))}
		var rows []*kinds.Resource
		for v := range rng.IntN(3) {
			rows = append(rows, row(name.Group, name.Resource, fmt.Sprint("v", v+2)))
		}
		l = l.Put(name, rows...)
		want[name] = rows
	}
	found := 0
	for name, rows := range want {
		for v := range 3 {
			version := fmt.Sprint("v", v+2)
			i := slices.IndexFunc(rows, func(r *kinds.Resource) bool { return r.Serves(version) })
			got := l.Find(name.Group, version, name.Resource)
			if (got == nil) != (i < 0) || got != nil && got != rows[i] {
				t.Errorf("%s %s: %v", name, version, got)
			}
		}
		found += len(rows)
	}
	if all := l.All(); len(all) != found+1 || !strings.HasPrefix(told(all)[0], "g0/v1/") {
		t.Errorf("%d resources, want %d", len(all), found+1)
	}
}
