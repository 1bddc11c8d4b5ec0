package rest

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func keptMap(size int) keptVersion {
	return keptVersion{rev: 7, rules: 1, obj: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"is": "kept"}}}, size: size}
}

// What is read is a copy of the version that was asked for, by the rules of now.
func TestUnchanged(t *testing.T) {
	k := &unchanged{}
	of := object{"main", "configmaps", "default/a"}
	k.put(of, keptMap(10))
	got, is := k.get(of, 7, 1).(*corev1.ConfigMap)
	if !is {
		t.Fatal("it is not kept")
	}
	got.Labels["is"] = "changed"
	if again := k.get(of, 7, 1).(*corev1.ConfigMap); again.Labels["is"] != "kept" {
		t.Error("a reader has changed what is kept")
	}
	if k.get(of, 8, 1) != nil || k.get(of, 7, 2) != nil || k.get(object{"fork", "configmaps", "default/a"}, 7, 1) != nil {
		t.Error("another version is taken for it")
	}
	k.drop()
	if k.has(of, 7, 1) {
		t.Error("it is kept after everything was given back")
	}
}

// However many are read, the bound holds; those that are asked for stay longest.
func TestUnchangedIsBounded(t *testing.T) {
	k := &unchanged{}
	name := func(i int) object { return object{"main", "configmaps", fmt.Sprint("default/", i)} }
	const size, all = 1 << 10, 3 * mostUnchanged >> 10
	for i := range all {
		k.put(name(i), keptMap(size))
		k.put(name(i), keptMap(size)) // the same again takes no more
		if !k.has(name(0), 7, 1) {
			t.Fatalf("the one that is asked for is gone after %d", i)
		}
		held := 0
		for _, generation := range []map[object]keptVersion{k.young, k.old} {
			for _, v := range generation {
				held += v.size
			}
		}
		if held > mostUnchanged {
			t.Fatalf("%d bytes after %d", held, i)
		}
	}
	if k.has(name(1), 7, 1) || !k.has(name(all-1), 7, 1) {
		t.Error("the oldest is kept, or the newest is not")
	}
	k.put(name(-1), keptMap(mostUnchanged))
	if k.has(name(-1), 7, 1) {
		t.Error("one that would leave room for little else is kept")
	}
}
