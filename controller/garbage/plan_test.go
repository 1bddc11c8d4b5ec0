package garbage

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func refs(names string) []metav1.OwnerReference {
	var list []metav1.OwnerReference
	for n := range strings.FieldsSeq(names) {
		name, blocking := strings.CutSuffix(n, "!")
		list = append(list, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID(name), BlockOwnerDeletion: &blocking})
	}
	return list
}

func said(list []metav1.OwnerReference) string {
	var names []string
	for _, r := range list {
		name := r.Name
		if blocks(r) {
			name += "!"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name                       string
		solid, gone, waiting, want string
		finalizers                 []string
		dependents                 []node
	}{
		{name: "an owner is there", solid: "a", want: "keep"},
		{name: "one of two owners is there", solid: "a!", gone: "b", want: "owners [a!]"},
		{name: "one of two owners waits", solid: "a", waiting: "b!", want: "owners [a]"},
		{name: "no owner is there", gone: "a b", want: "delete Background"},
		{name: "an owner waits, nothing depends on it", waiting: "a!", want: "delete Background"},
		{name: "an owner waits, something depends on it", waiting: "a!", dependents: []node{{}}, want: "delete Foreground"},
		{name: "a circle", waiting: "a!", dependents: []node{{foreground: true}}, want: "owners [a] delete Foreground"},
		{name: "it is to set its own free", gone: "a", finalizers: []string{"orphan"}, want: "delete Orphan"},
		{name: "it is to wait for its own", gone: "a", finalizers: []string{"foregroundDeletion"}, want: "delete Foreground"},
		{name: "no owner is there, and one waits", gone: "a", waiting: "b", want: "delete Background"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := owners{solid: refs(c.solid), gone: refs(c.gone), waiting: refs(c.waiting)}
			obj := &metav1.PartialObjectMetadata{}
			obj.OwnerReferences, obj.Finalizers = slices.Concat(o.solid, o.gone, o.waiting), c.finalizers
			var did []string
			p := plan(obj, o, c.dependents)
			if p.Owners != nil {
				did = append(did, "owners ["+said(*p.Owners)+"]")
			}
			if p.Delete != "" {
				did = append(did, "delete "+string(p.Delete))
			}
			if len(did) == 0 {
				did = []string{"keep"}
			}
			if got := strings.Join(did, " "); got != c.want {
				t.Errorf("planned %q, not %q", got, c.want)
			}
		})
	}
}

// TestGraph tells a graph what happens and asks who is looked at then.
func TestGraph(t *testing.T) {
	things := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	of := func(name, owners string) node {
		return node{uid: types.UID(name), resource: things, kind: "ConfigMap", namespace: "n", name: name, owners: refs(owners)}
	}
	foreground := func(n node) node {
		n.deleting, n.foreground = true, true
		return n
	}
	elsewhere := of("far", "a")
	elsewhere.namespace = "m"
	for _, c := range []struct {
		name  string
		first []node
		do    func(*graph)
		want  string
	}{
		{"an owner is known", []node{of("a", "")}, func(g *graph) { g.put(of("b", "a")) }, ""},
		{"an owner is not known", nil, func(g *graph) { g.put(of("b", "a")) }, "b"},
		{"an owner comes later", nil, func(g *graph) { g.put(of("b", "a")); g.put(of("a", "")) }, "b"},
		{"an owner goes", []node{of("a", ""), of("b", "a"), of("c", "a")}, func(g *graph) { g.remove("a") }, "b c"},
		{"another goes", []node{of("a", ""), of("b", "a")}, func(g *graph) { g.remove("b") }, ""},
		{"an owner waits", []node{of("a", ""), of("b", "a!")}, func(g *graph) { g.put(foreground(of("a", ""))) }, "a b"},
		{"the first of two that block goes", []node{foreground(of("a", "")), of("b", "a!"), of("c", "a!")}, func(g *graph) { g.remove("b") }, ""},
		{"the last that blocks goes", []node{foreground(of("a", "")), of("b", "a!"), of("c", "a")}, func(g *graph) { g.remove("b") }, "a"},
		{"the last that blocks no longer does", []node{foreground(of("a", "")), of("b", "a!")}, func(g *graph) { g.put(of("b", "a")) }, "a b"},
		{"another name", []node{of("a", "")}, func(g *graph) {
			n := of("b", "a")
			n.owners[0].Name = "other"
			g.put(n)
		}, "b"},
		{"another kind", []node{of("a", "")}, func(g *graph) {
			n := of("b", "a")
			n.owners[0].Kind = "Secret"
			g.put(n)
		}, "b"},
		{"a kind has been listed", []node{of("a", ""), of("b", "a"), of("c", "z")}, func(g *graph) { g.recheck() }, "c"},
		{"another namespace", []node{of("a", "")}, func(g *graph) { g.put(elsewhere) }, "far misplaced:far"},
	} {
		t.Run(c.name, func(t *testing.T) {
			looked := map[string]bool{}
			g := newGraph(func(uid types.UID) { looked[string(uid)] = true }, func(n node, _ metav1.OwnerReference) { looked["misplaced:"+n.name] = true })
			for _, n := range c.first {
				g.put(n)
			}
			g.finish()
			clear(looked)
			c.do(g)
			var names []string
			for n := range looked {
				names = append(names, n)
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("looked at %q, not %q", got, c.want)
			}
		})
	}
	g := newGraph(func(types.UID) {}, func(node, metav1.OwnerReference) {})
	for i := range 3 {
		g.put(of(fmt.Sprint(i), "a!"))
		g.put(of(fmt.Sprint(i), "a!"))
	}
	for i := range 3 {
		g.remove(types.UID(fmt.Sprint(i)))
	}
	if len(g.nodes)+len(g.dependentsOf)+len(g.blockers) > 0 {
		t.Errorf("an empty graph still has %v %v %v", g.nodes, g.dependentsOf, g.blockers)
	}
}
