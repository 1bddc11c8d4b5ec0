package job

import (
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// indexes are completion indexes, as ascending ranges that do not touch.
//
// Written down they are "1,3-5,7,8": a range of two is two numbers.
type indexes []span

type span struct{ first, last int }

// parseIndexes reads what String has written, of indexes below n. What cannot
// be read is left out.
func parseIndexes(text string, n int) indexes {
	var all indexes
	for field := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(field, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil {
				continue
			}
		}
		if last = min(last, n-1); first <= last {
			all = append(all, span{first, last})
		}
	}
	return all.normal()
}

// normal is the same indexes in order, with ranges that touch made one.
func (x indexes) normal() indexes {
	sorted := slices.Clone(x)
	slices.SortFunc(sorted, func(a, b span) int { return a.first - b.first })
	var joined indexes
	for _, s := range sorted {
		if n := len(joined); n > 0 && s.first <= joined[n-1].last+1 {
			joined[n-1].last = max(joined[n-1].last, s.last)
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

// and is the indexes that are in one or the other.
func (x indexes) and(others indexes) indexes { return slices.Concat(x, others).normal() }

func (x indexes) with(some ...int) indexes {
	more := slices.Clone(x)
	for _, i := range some {
		more = append(more, span{i, i})
	}
	return more.normal()
}

func (x indexes) has(i int) bool {
	at, found := slices.BinarySearchFunc(x, i, func(s span, i int) int { return s.first - i })
	return found || at > 0 && x[at-1].last >= i
}

func (x indexes) total() int {
	n := 0
	for _, s := range x {
		n += s.last - s.first + 1
	}
	return n
}

// common is how many indexes are in both.
func (x indexes) common(others indexes) int {
	n := 0
	for i, j := 0, 0; i < len(x) && j < len(others); {
		n += max(0, min(x[i].last, others[j].last)-max(x[i].first, others[j].first)+1)
		if x[i].last < others[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// missing are the first indexes below n that are not in x, at most so many.
func (x indexes) missing(most, n int) []int {
	var free []int
	next := 0
	for _, s := range append(slices.Clone(x), span{n, n}) {
		for ; next < min(s.first, n) && len(free) < most; next++ {
			free = append(free, next)
		}
		next = max(next, s.last+1)
	}
	return free
}

func (x indexes) String() string {
	var b strings.Builder
	for _, s := range x {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s.first))
		switch {
		case s.last == s.first+1:
			b.WriteByte(',')
			b.WriteString(strconv.Itoa(s.last))
		case s.last > s.first:
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(s.last))
		}
	}
	return b.String()
}

// noIndex is that of a pod that has none.
const noIndex = -1

// indexOf is the pod's completion index.
func indexOf(p *corev1.Pod) int {
	i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}
