package app

import "testing"

// A busy server collects when spare is full, a quiet one at Go's pace.
func TestPace(t *testing.T) {
	const mib = 1 << 20
	type look struct {
		live, cycles uint64
		percent      int
		changed      bool
	}
	quiet := func(percent int) []look {
		var all []look
		for range quietAfter - 1 {
			all = append(all, look{32 * mib, 1, percent, false})
		}
		return append(all, look{32 * mib, 1, goPercent, percent != goPercent})
	}
	for _, c := range []struct {
		name  string
		looks []look
	}{
		{"nothing happens", []look{{32 * mib, 0, goPercent, false}}},
		{"a small heap that is busy gets room", []look{{32 * mib, 1, 400, true}, {32 * mib, 9, 400, false}}},
		{"what is near enough stays", []look{{32 * mib, 1, 400, true}, {34 * mib, 2, 400, false}, {48 * mib, 3, 266, true}}},
		{"a large heap has room enough", []look{{200 * mib, 1, goPercent, false}}},
		{"a tiny heap does not get any number", []look{{1, 1, maxPercent, true}}},
		{"after a while of quiet it is given back", append([]look{{32 * mib, 1, 400, true}}, quiet(400)...)},
		{"and there again when it is busy again", append(append([]look{{32 * mib, 1, 400, true}}, quiet(400)...), look{32 * mib, 2, 400, true})},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pace
			for i, l := range c.looks {
				if percent, changed := p.look(l.live, l.cycles); percent != l.percent || changed != l.changed {
					t.Errorf("look %d: %d, %v; want %d, %v", i, percent, changed, l.percent, l.changed)
				}
			}
		})
	}
}
