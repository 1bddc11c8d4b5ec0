package ipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// plan returns a part of each range that is not taken, looked for from next on,
// and where to look the next time.
func plan(s Settings, taken []netip.Prefix, next []int) (parts []netip.Prefix, after []int, err error) {
	after = slices.Clone(next)
	for i, r := range s.Ranges {
		part, at, found := free(r, s.mask(r), append(slices.Clone(s.Services), taken...), next[i])
		if !found {
			return nil, nil, fmt.Errorf("no part of %s is free", r)
		}
		parts, after[i] = append(parts, part), at+1
	}
	return parts, after, nil
}

// free is a part of a range that overlaps nothing that is taken, the first from
// one on and, behind the last, from the first on.
func free(of netip.Prefix, mask int, taken []netip.Prefix, from int) (part netip.Prefix, at int, found bool) {
	same, others := map[netip.Prefix]bool{}, []netip.Prefix{}
	for _, t := range taken {
		switch {
		case !t.Overlaps(of):
		case t.Bits() == mask:
			same[t.Masked()] = true
		default:
			others = append(others, t)
		}
	}
	count := 1 << (mask - of.Bits())
	for i := range count {
		at = (from + i) % count
		part = nth(of, mask, at)
		if !same[part] && !slices.ContainsFunc(others, part.Overlaps) {
			return part, at, true
		}
	}
	return netip.Prefix{}, 0, false
}

// nth is the nth part of a range.
func nth(of netip.Prefix, mask, n int) netip.Prefix {
	first := of.Masked().Addr()
	at := new(big.Int).SetBytes(first.AsSlice())
	at.Add(at, new(big.Int).Lsh(big.NewInt(int64(n)), uint(first.BitLen()-mask)))
	addr, _ := netip.AddrFromSlice(at.FillBytes(make([]byte, first.BitLen()/8))) // it is as long as the first
	return netip.PrefixFrom(addr, mask)
}
