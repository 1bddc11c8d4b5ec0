package queue

// byImportance is a heap of items: the most important first, then those that have
// waited longest.
type byImportance []*Item

func (h byImportance) Len() int { return len(h) }

func (h byImportance) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.Pod.Priority != b.Pod.Priority {
		return a.Pod.Priority > b.Pod.Priority
	}
	if !a.since.Equal(b.since) {
		return a.since.Before(b.since)
	}
	return a.order < b.order
}

func (h byImportance) Swap(i, j int) { swap(h, i, j) }

// Push implements heap.Interface.
func (h *byImportance) Push(x any) { push((*[]*Item)(h), x) }

// Pop implements heap.Interface.
func (h *byImportance) Pop() any { return pop((*[]*Item)(h)) }

// byEnd is a heap of items: those whose backoff ends first.
type byEnd []*Item

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h byEnd) Swap(i, j int)      { swap(h, i, j) }

// Push implements heap.Interface.
func (h *byEnd) Push(x any) { push((*[]*Item)(h), x) }

// Pop implements heap.Interface.
func (h *byEnd) Pop() any { return pop((*[]*Item)(h)) }

func swap(h []*Item, i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func push(h *[]*Item, x any) {
	item := x.(*Item)
	item.index = len(*h)
	*h = append(*h, item)
}

func pop(h *[]*Item) *Item {
	last := len(*h) - 1
	item := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return item
}
