package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"setpoint.dev/setpoint/controller/plantest"
)

func ranges(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func TestPlan(t *testing.T) {
	one := Settings{Ranges: ranges("10.244.0.0/16")}
	two := Settings{Ranges: ranges("10.244.0.0/16", "fd00:1::/48")}
	small := Settings{Ranges: ranges("10.0.0.0/23"), Mask4: 24}
	cases := []struct {
		name     string
		settings Settings
		taken    []netip.Prefix
		next     []int
	}{
		{"the first", one, nil, []int{0}},
		{"the next", one, ranges("10.244.0.0/24", "10.244.1.0/24"), []int{2}},
		{"the next is taken", one, ranges("10.244.2.0/24"), []int{2}},
		{"one that came free waits for its turn", one, ranges("10.244.1.0/24"), []int{2}},
		{"round the end", small, ranges("10.0.1.0/24"), []int{1}},
		{"none is free", small, ranges("10.0.0.0/24", "10.0.1.0/24"), []int{1}},
		{"a larger part is taken", one, ranges("10.244.0.0/20"), []int{0}},
		{"a smaller part is taken", one, ranges("10.244.0.128/28"), []int{0}},
		{"taken elsewhere", one, ranges("192.168.0.0/24"), []int{0}},
		{"services are in it", Settings{Ranges: ranges("10.0.0.0/16"), Services: ranges("10.0.0.0/22")}, nil, []int{0}},
		{"it is in services", Settings{Ranges: ranges("10.0.0.0/16"), Services: ranges("10.0.0.0/8")}, nil, []int{0}},
		{"both families", two, ranges("10.244.0.0/24", "fd00:1::/64"), []int{0, 0}},
		{"both families, each in its turn", two, nil, []int{255, 65535}},
		{"other sizes", Settings{Ranges: two.Ranges, Mask4: 20, Mask6: 56}, nil, []int{1, 1}},
	}
	var b strings.Builder
	for _, c := range cases {
		parts, next, err := plan(c.settings, c.taken, c.next)
		fmt.Fprintf(&b, "# %s\n", c.name)
		if err != nil {
			fmt.Fprintf(&b, "%v\n\n", err)
			continue
		}
		fmt.Fprintf(&b, "%v, then %v\n\n", parts, next)
	}
	plantest.Golden(t, "plan.txt", b.String())
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		of    Settings
		wrong bool
	}{
		{"none", Settings{}, false},
		{"none to give", Settings{Allocate: true}, true},
		{"one", Settings{Ranges: ranges("10.244.0.0/16")}, false},
		{"both families", Settings{Ranges: ranges("10.244.0.0/16", "fd00::/48")}, false},
		{"one family twice", Settings{Ranges: ranges("10.244.0.0/16", "10.245.0.0/16")}, true},
		{"three", Settings{Ranges: ranges("10.244.0.0/16", "fd00::/48", "fd01::/48")}, true},
		{"parts larger than the range", Settings{Ranges: ranges("10.244.0.0/25")}, true},
		{"too many parts", Settings{Ranges: ranges("fd00::/32")}, true},
		{"smaller than an address", Settings{Ranges: ranges("10.244.0.0/24"), Mask4: 33}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.of.Check(); (err != nil) != c.wrong {
				t.Errorf("%v", err)
			}
		})
	}
}
