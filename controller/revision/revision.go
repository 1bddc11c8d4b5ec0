// Package revision keeps what the pod template of a set was: each template that
// a StatefulSet or DaemonSet has had is a ControllerRevision, which the set can
// return to.
//
// In goes the set and the revisions that it controls; out comes which of them
// is that of the template, or a new one, and which are no longer needed. Data
// is a patch that puts the template back, in the bytes that Kubernetes writes.
package revision

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
)

// maxPrefix leaves room for the hash in a revision's name.
const maxPrefix = 223

// Owner is a set with a template.
type Owner struct {
	metav1.Object
	Kind       schema.GroupVersionKind
	Template   *corev1.PodTemplateSpec
	Collisions int32
	// Hash names the template; nil means that the name follows from what is kept.
	Hash func() string
	// Same says that a template which was written down otherwise means the
	// same; nil when only equal bytes do.
	Same func(was *corev1.PodTemplateSpec) bool
}

// Sort orders revisions from the first to the last.
func Sort(all []*appsv1.ControllerRevision) {
	slices.SortStableFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
}

// Choice is the revision of a template, and what has to be written for it: New is
// to be created, Renumbered, a copy, to be updated, because an earlier template
// is back.
type Choice struct {
	*appsv1.ControllerRevision
	New, Renumbered bool
}

// Choose finds the revision of the owner's template among those that there are,
// which are in order, or makes one.
func Choose(of Owner, all []*appsv1.ControllerRevision) (Choice, error) {
	data, err := patch(of.Template)
	if err != nil {
		return Choice{}, fmt.Errorf("revision of %s: %w", of.GetName(), err)
	}
	next := int64(1)
	if len(all) > 0 {
		last := all[len(all)-1]
		next = last.Revision + 1
		if bytes.Equal(last.Data.Raw, data) {
			return Choice{ControllerRevision: last}, nil
		}
		for _, r := range slices.Backward(all) {
			if bytes.Equal(r.Data.Raw, data) {
				r = r.DeepCopy()
				r.Revision = next
				return Choice{r, false, true}, nil
			}
		}
		if was, err := Template(last); err == nil && of.Same != nil && of.Same(was) {
			return Choice{ControllerRevision: last}, nil
		}
	}
	made := of.revision(data)
	made.Revision = next
	return Choice{made, true, false}, nil
}

// revision is one of the owner's template. Its name follows from the template
// and the number of collisions.
func (of Owner) revision(data []byte) *appsv1.ControllerRevision {
	hash := of.hash(data)
	labels := maps.Clone(of.Template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1.ControllerRevisionHashLabelKey] = hash
	name := of.GetName()
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name[:min(len(name), maxPrefix)] + "-" + hash, Namespace: of.GetNamespace(), Labels: labels, Annotations: maps.Clone(of.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, of.Kind)},
		},
		Data: runtime.RawExtension{Raw: data},
	}
}

func (of Owner) hash(data []byte) string {
	if of.Hash != nil {
		return of.Hash()
	}
	h := fnv.New32()
	h.Write(data)
	h.Write([]byte(strconv.Itoa(int(of.Collisions))))
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// patch is the template as a patch of its owner, with its fields in order.
func patch(t *corev1.PodTemplateSpec) ([]byte, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // large numbers stay what they are
	if err := d.Decode(&fields); err != nil {
		return nil, err
	}
	fields["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": fields}})
}

// Template is the template that the revision keeps.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var kept struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &kept); err != nil {
		return nil, fmt.Errorf("revision %s: %w", r.Name, err)
	}
	return &kept.Spec.Template, nil
}

// Surplus are the oldest of the revisions that nobody lives by, beyond the limit.
// Revisions are in order.
func Surplus(all []*appsv1.ControllerRevision, limit *int32, live map[string]bool) []*appsv1.ControllerRevision {
	if limit == nil || *limit < 0 {
		return nil
	}
	idle := slices.DeleteFunc(slices.Clone(all), func(r *appsv1.ControllerRevision) bool { return live[r.Name] })
	return idle[:max(0, len(idle)-int(*limit))]
}
