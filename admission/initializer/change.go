package initializer

import (
	"fmt"
	"slices"

	"setpoint.dev/setpoint/api/initializers"
)

// Names are those of a list of initializers.
func Names(of *initializers.Initializers) []string {
	if of == nil {
		return nil
	}
	names := make([]string, len(of.Pending))
	for i, p := range of.Pending {
		names[i] = p.Name
	}
	return names
}

// change is what a write does to the list of what an object waits for.
type change struct {
	removed []string // in the order that they were in
	added   []string
	// ahead are those removed that were not next in turn.
	ahead []string
	// moved are those that stay, and that others stand before now that stood
	// behind them.
	moved []string
}

// compare tells what became of a list.
func compare(before, after []string) change {
	var c change
	rest := slices.Clone(after)
	var kept []string // those of before that stay, in their order
	for _, name := range before {
		if i := slices.Index(rest, name); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
			kept = append(kept, name)
			continue
		}
		c.removed = append(c.removed, name)
		if len(kept) > 0 {
			c.ahead = append(c.ahead, name)
		}
	}
	c.added = rest
	stay := slices.Clone(after)
	for _, name := range rest {
		// The last of a name is the one that came new.
		for i, s := range slices.Backward(stay) {
			if s == name {
				stay = slices.Delete(stay, i, i+1)
				break
			}
		}
	}
	for i, name := range kept {
		if stay[i] != name {
			c.moved = append(c.moved, name)
		}
	}
	return c
}

// warnings say what is unusual about a change: all but taking the next one
// off.
func (c change) warnings() []string {
	var texts []string
	for _, name := range c.ahead {
		texts = append(texts, fmt.Sprintf("metadata.initializers: %q was removed before its turn", name))
	}
	for _, name := range c.added {
		texts = append(texts, fmt.Sprintf("metadata.initializers: %q was added", name))
	}
	if len(c.moved) > 0 {
		texts = append(texts, "metadata.initializers: the order of pending initializers was changed")
	}
	return texts
}
