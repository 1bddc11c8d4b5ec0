package zipped

import "hash/crc32"

// sum is the checksum of some bytes, and how many they are.
type sum struct {
	crc  uint32
	size uint64
}

func (s *sum) add(p []byte) {
	s.crc = crc32.Update(s.crc, crc32.IEEETable, p)
	s.size += uint64(len(p))
}

// then is the sum of these bytes with others behind them.
func (s sum) then(t sum) sum {
	return sum{times(s.crc, powerOf(8*t.size)) ^ t.crc, s.size + t.size}
}

// Checksums are polynomials over two elements, modulo crc32.IEEE; the highest
// bit is the one without x. What stands before n bits is multiplied by x to the
// n-th.
const one = 1 << 31

func times(a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			product ^= b
		}
		if b&1 != 0 {
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
	return product
}

// powerOf is x to the n-th.
func powerOf(n uint64) uint32 {
	power, square := uint32(one), uint32(one>>1)
	for ; n != 0; n >>= 1 {
		if n&1 != 0 {
			power = times(power, square)
		}
		square = times(square, square)
	}
	return power
}
