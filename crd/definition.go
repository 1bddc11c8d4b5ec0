package crd

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"setpoint.dev/setpoint/kinds"
)

// Stored is a CustomResourceDefinition as the store has it.
type Stored struct {
	Name     string
	Revision uint64
	// Value is its JSON in version v1. It must never change.
	Value []byte
}

// read is the whole of a definition.
func (s Stored) read() (*apiextensions.CustomResourceDefinition, error) {
	full := &apiextensions.CustomResourceDefinition{}
	return full, json.Unmarshal(s.Value, full)
}

// definition is a CustomResourceDefinition that is known to the registry: what
// discovery and routing need of it, and the kinds it makes. All else is read
// from its bytes when one of the kinds is used.
type definition struct {
	stored Stored
	head   head
	// fingerprint is of the rules by which objects are stored.
	fingerprint uint32
	// defined is the newest revision that its kinds are right for.
	defined *atomic.Uint64
	gone    chan struct{} // closed when it is there no more
	made    *parts        // nil while it is not established
	kinds   []*kinds.Resource
	// stores is the kind in the version that objects are stored in, which need
	// not be served. Nil while it is not established.
	stores *kinds.Resource
}

// head is the part of a definition that is read at once. Its schemas are not.
type head struct {
	Metadata struct {
		UID               string     `json:"uid"`
		Generation        int64      `json:"generation"`
		DeletionTimestamp *time.Time `json:"deletionTimestamp"`
		Finalizers        []string   `json:"finalizers"`
	} `json:"metadata"`
	Spec struct {
		Group                 string                                      `json:"group"`
		Names                 apiextensions.CustomResourceDefinitionNames `json:"names"`
		Scope                 apiextensions.ResourceScope                 `json:"scope"`
		Versions              []headVersion                               `json:"versions"`
		PreserveUnknownFields bool                                        `json:"preserveUnknownFields"`
	} `json:"spec"`
	Status apiextensions.CustomResourceDefinitionStatus `json:"status"`
}

type headVersion struct {
	Name               string  `json:"name"`
	Served             bool    `json:"served"`
	Storage            bool    `json:"storage"`
	Deprecated         bool    `json:"deprecated"`
	DeprecationWarning *string `json:"deprecationWarning"`
	// Schema and SelectableFields count for the fingerprint and the schema's sum
	// alone.
	Schema           json.RawMessage `json:"schema"`
	SelectableFields json.RawMessage `json:"selectableFields"`
	Subresources     *struct {
		Status *struct{} `json:"status"`
		Scale  *struct {
			SpecReplicasPath string `json:"specReplicasPath"`
		} `json:"scale"`
	} `json:"subresources"`
	sum sum // of the schema
}

func (h *head) is(condition apiextensions.CustomResourceDefinitionConditionType) bool {
	return slices.ContainsFunc(h.Status.Conditions, func(c apiextensions.CustomResourceDefinitionCondition) bool {
		return c.Type == condition && c.Status == apiextensions.ConditionTrue
	})
}

// served are the versions that are served, the preferred one first.
func (h *head) served() []headVersion {
	served := slices.DeleteFunc(slices.Clone(h.Spec.Versions), func(v headVersion) bool { return !v.Served })
	slices.SortStableFunc(served, func(a, b headVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Name, a.Name)
	})
	return served
}

// warning is what clients of a version are told; "" for nothing.
func (h *head) warning(of headVersion) string {
	switch {
	case !of.Deprecated:
		return ""
	case of.DeprecationWarning != nil:
		return *of.DeprecationWarning
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", h.Spec.Group, of.Name, h.Spec.Names.Kind)
	for _, v := range h.served() {
		if !v.Deprecated && version.CompareKubeAwareVersionStrings(of.Name, v.Name) < 0 {
			return text + fmt.Sprintf("; use %s/%s %s", h.Spec.Group, v.Name, h.Spec.Names.Kind)
		}
	}
	return text
}

// newDefinition reads a stored definition. One that is not established makes no
// kinds; one that says the same as before makes the same.
func newDefinition(s Stored, was *definition, convert *Conversion, shared *shapes) (*definition, error) {
	d := &definition{stored: s}
	if err := json.Unmarshal(s.Value, &d.head); err != nil {
		return nil, fmt.Errorf("custom resource definition %s: %w", s.Name, err)
	}
	d.fingerprint = d.head.fingerprint()
	d.gone = make(chan struct{})
	if was != nil && was.head.serves(&d.head) {
		d.gone, d.made, d.kinds, d.stores = was.gone, was.made, was.kinds, was.stores
		if d.head.leaves() == was.head.leaves() {
			d.defined = was.defined
			d.defined.Store(s.Revision)
			return d, nil
		}
	}
	d.defined = new(atomic.Uint64)
	d.defined.Store(s.Revision)
	if !d.head.is(apiextensions.Established) {
		return d, nil
	}
	if d.made == nil {
		d.made = &parts{stored: s, convert: convert, shared: shared, sums: d.head.sums(), digest: d.head.digest()}
	}
	d.kinds = nil
	for _, v := range d.head.served() {
		d.kinds = append(d.kinds, d.resource(v))
	}
	for _, v := range d.head.Spec.Versions {
		if v.Storage {
			d.stores = d.resource(v)
		}
	}
	return d, nil
}

// fingerprint is that of the rules by which objects are stored, and lets go of
// the schemas that it is taken of.
func (h *head) fingerprint() uint32 {
	hash := sha256.New()
	put := func(format string, args ...any) { _, _ = fmt.Fprintf(hash, format, args...) } // a sum takes all
	put("%s %t\n", h.storage(), h.Spec.PreserveUnknownFields)
	for i := range h.Spec.Versions {
		v := &h.Spec.Versions[i]
		v.sum = sha256.Sum256(fmt.Appendf(v.Schema, "%t", h.Spec.PreserveUnknownFields))
		put("%s %x %d %s\n", v.Name, v.sum, len(v.SelectableFields), v.SelectableFields)
		v.Schema, v.SelectableFields = nil, nil
	}
	return binary.BigEndian.Uint32(hash.Sum(nil))
}

// sums are those of the schemas, by version, once the fingerprint is taken.
func (h *head) sums() map[string]sum {
	sums := make(map[string]sum, len(h.Spec.Versions))
	for _, v := range h.Spec.Versions {
		sums[v.Name] = v.sum
	}
	return sums
}

// digest changes with all that a definition says about its kinds.
func (h *head) digest() string {
	return fmt.Sprint(h.Metadata.UID, h.Metadata.Generation, h.Status.AcceptedNames)
}

// serves says that what is served is the same as by another state of the
// definition.
func (h *head) serves(other *head) bool {
	return h.Metadata.UID == other.Metadata.UID && h.Metadata.Generation == other.Metadata.Generation &&
		apiequality.Semantic.DeepEqual(h.Status.AcceptedNames, other.Status.AcceptedNames) &&
		h.is(apiextensions.Established) == other.is(apiextensions.Established)
}

// leaves says that the definition is being removed.
func (h *head) leaves() bool { return h.is(apiextensions.Terminating) }

var (
	// Compat: in upstream's order.
	allVerbs  = metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	viewVerbs = metav1.Verbs{"get", "patch", "update"}
)

// storage is the version that objects are stored in.
func (h *head) storage() string {
	for _, v := range h.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// resource is the kind in one of its versions.
func (d *definition) resource(v headVersion) *kinds.Resource {
	names := d.head.Status.AcceptedNames
	k := newKind(d, v.Name)
	s := newStrategy(k, "")
	r := &kinds.Resource{
		Group: d.head.Spec.Group, Name: names.Plural, Singular: names.Singular, Kind: names.Kind, ListKind: names.ListKind,
		Namespaced: k.namespaced, ShortNames: names.ShortNames, Categories: names.Categories,
		Versions: []string{v.Name}, Storage: schema.GroupVersion{Group: d.head.Spec.Group, Version: d.head.storage()},
		Table: d.stored.Name, Verbs: allVerbs,
		Scheme: k, Custom: k, Create: s, Update: s, Delete: s, Fields: s.fields, Columns: &columns{kind: k},
		Warning: d.head.warning(v), Gone: d.gone, Leaving: d.head.leaves(),
		Subresources: map[string]*kinds.Subresource{},
	}
	if v.Subresources != nil && v.Subresources.Status != nil {
		r.Subresources["status"] = &kinds.Subresource{
			Name: "status", Kind: schema.GroupVersionKind{Group: r.Group, Kind: r.Kind}, Verbs: viewVerbs, Update: newStrategy(k, "status"),
		}
	}
	if v.Subresources != nil && v.Subresources.Scale != nil {
		r.Subresources["scale"] = &kinds.Subresource{
			Name: "scale", Kind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, Verbs: viewVerbs, Scale: k.scale(&d.head),
		}
	}
	return r
}
