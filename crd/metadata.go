package crd

import (
	"time"

	"setpoint.dev/setpoint/api/initializers"
)

// plainMetadata says that an object's metadata is as it would be read and
// written again: all of it is known, of the right type, and written in the one
// way that it is written in. So there is nothing to bring into shape.
func plainMetadata(m map[string]any) bool {
	for name, v := range m {
		if !plainMetadataField(name, v) {
			return false
		}
	}
	return true
}

func plainMetadataField(name string, v any) bool {
	switch name {
	case "name", "generateName", "namespace", "uid", "resourceVersion", "selfLink":
		return isText(v)
	case "creationTimestamp", "deletionTimestamp":
		return isTime(v)
	case "generation":
		n, ok := v.(int64)
		return ok && n != 0
	case "deletionGracePeriodSeconds":
		_, ok := v.(int64)
		return ok
	case "labels":
		return isTexts(v)
	case "annotations":
		return isTexts(v) && !carries(v)
	case "finalizers":
		return eachOf(v, isItem)
	case "ownerReferences":
		return eachOf(v, isOwner)
	case "managedFields":
		return eachOf(v, isEntry)
	default:
		return false
	}
}

// carries says that annotations have one that is dropped from what clients send.
func carries(annotations any) bool {
	m, _ := annotations.(map[string]any)
	_, has := m[initializers.Carried]
	return has
}

func isItem(v any) bool {
	_, ok := v.(string)
	return ok
}

// isText says that a value is a text with something in it.
func isText(v any) bool {
	s, ok := v.(string)
	return ok && s != ""
}

// isTime says that a value is a time, to the second and of no zone.
func isTime(v any) bool {
	s, _ := v.(string)
	t, err := time.Parse(time.RFC3339, s)
	return err == nil && !t.IsZero() && t.UTC().Format(time.RFC3339) == s
}

func isTexts(v any) bool {
	m, _ := v.(map[string]any)
	for _, value := range m {
		if !isItem(value) {
			return false
		}
	}
	return len(m) > 0
}

// eachOf says that a value is a list with something in it, all of which is so.
func eachOf(v any, is func(any) bool) bool {
	list, _ := v.([]any)
	for _, item := range list {
		if !is(item) {
			return false
		}
	}
	return len(list) > 0
}

// isOwner says that a value is an owner reference.
func isOwner(v any) bool {
	m, _ := v.(map[string]any)
	needed := 0
	for name, value := range m {
		switch name {
		case "apiVersion", "kind", "name", "uid":
			if needed++; !isItem(value) {
				return false
			}
		case "controller", "blockOwnerDeletion":
			if _, ok := value.(bool); !ok {
				return false
			}
		default:
			return false
		}
	}
	return needed == 4
}

// isEntry says that a value is an entry of the record of owners.
func isEntry(v any) bool {
	m, _ := v.(map[string]any)
	for name, value := range m {
		switch name {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			if !isText(value) {
				return false
			}
		case "time":
			if !isTime(value) {
				return false
			}
		case "fieldsV1":
			if !isTree(value) {
				return false
			}
		default:
			return false
		}
	}
	return m != nil
}

// isTree says that a value is made of nothing but objects.
func isTree(v any) bool {
	m, ok := v.(map[string]any)
	for _, below := range m {
		if !isTree(below) {
			return false
		}
	}
	return ok && m != nil
}
