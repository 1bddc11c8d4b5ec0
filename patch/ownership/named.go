package ownership

import (
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
)

// named are the fields that a manifest names, all of which are then its applier's,
// found in the same walk that makes sure that the manifest is as its type says. It
// is not ok for one that is not, or has something twice: upstream says what.
func (s shape) named(manifest map[string]any) (*fieldpath.Set, bool) {
	atom, ok := s.schema.Resolve(s.ref)
	if !ok || atom.Map == nil || atom.Map.ElementRelationship == smdschema.Atomic {
		return nil, false
	}
	whole := &spot{set: fieldpath.NewSet()}
	return whole.set, s.nameFields(whole, atom.Map, manifest)
}

// spot is a place in a set of fields that is made when something is there. That
// which is owned as a whole has none below it: nil.
type spot struct {
	above *spot
	at    fieldpath.PathElement
	set   *fieldpath.Set
}

func (p *spot) below(at fieldpath.PathElement) *spot {
	if p == nil {
		return nil
	}
	return &spot{above: p, at: at}
}

func (p *spot) fields() *fieldpath.Set {
	if p.set == nil {
		p.set = p.above.fields().Children.Descend(p.at)
	}
	return p.set
}

func (p *spot) add(at fieldpath.PathElement) {
	if p != nil {
		p.fields().Members.Insert(at)
	}
}

func (s shape) nameFields(p *spot, t *smdschema.Map, m map[string]any) bool {
	for key, v := range m {
		at := fieldpath.PathElement{FieldName: &key}
		f, declared := t.FindField(key)
		below := shape{s.schema, f.Type}
		if !declared {
			below.ref = t.ElementType
		}
		if !declared && t.ElementType == (smdschema.TypeRef{}) || !below.name(p, at, v) {
			return false
		}
		if empty, isMap := v.(map[string]any); v == nil || isMap && len(empty) == 0 || !declared {
			p.add(at)
		}
	}
	return true
}

// name notes what a value names that is at a place below p.
func (s shape) name(p *spot, at fieldpath.PathElement, v any) bool {
	atom, ok := s.schema.Resolve(s.ref)
	if !ok {
		return false
	}
	atom = deduced(atom, v)
	switch {
	case atom.Map != nil:
		m, isMap := v.(map[string]any)
		return (isMap || v == nil) && s.nameFields(s.into(p, at, atom.Map.ElementRelationship), atom.Map, m)
	case atom.Scalar != nil:
		p.add(at)
		return validScalar(*atom.Scalar, v)
	case atom.List != nil:
		l, isList := v.([]any)
		return (isList || v == nil) && s.nameItems(s.into(p, at, atom.List.ElementRelationship), atom.List, l)
	default:
		return false
	}
}

// into is the place below p of what is looked into. What is a whole is noted, and
// has no places.
func (s shape) into(p *spot, at fieldpath.PathElement, related smdschema.ElementRelationship) *spot {
	if related == smdschema.Atomic {
		p.add(at)
		return nil
	}
	return p.below(at)
}

func (s shape) nameItems(p *spot, t *smdschema.List, l []any) bool {
	item := shape{s.schema, t.ElementType}
	if t.ElementRelationship != smdschema.Associative {
		for _, v := range l {
			if t.ElementRelationship != smdschema.Atomic || !item.name(nil, fieldpath.PathElement{}, v) {
				return false
			}
		}
		return true
	}
	known := fieldpath.MakePathElementSet(len(l))
	for _, v := range l {
		at, err := item.key(t, v)
		if err != nil || known.Has(at) || !item.name(p, at, v) {
			return false
		}
		known.Insert(at)
		p.add(at)
	}
	return true
}
