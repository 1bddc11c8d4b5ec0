// Package template names pod templates: equal templates have equal names. Where
// two that differ come to one name, a number of collisions leads to another.
package template

import (
	"encoding/binary"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	hashutil "k8s.io/kubernetes/pkg/util/hash"
)

// Hash is a short name for a template, the one that Kubernetes gives it. When
// another template turns out to have the same, a number of collisions leads to
// another; nil stands for none.
func Hash(t *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	hashutil.DeepHashObject(h, *t)
	if collisions != nil {
		var b [8]byte // Compat: four of them stay zero
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions))
		h.Write(b[:])
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Collided is the number of collisions after one more.
func Collided(collisions *int32) *int32 {
	n := int32(1)
	if collisions != nil {
		n += *collisions
	}
	return &n
}
