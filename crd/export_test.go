package crd

// Used is how many definitions have been read in full, because one of their
// kinds was used.
func (r *Registry) Used() int {
	used := 0
	r.made.Load().definitions.Scan(func(_ string, d *definition) bool {
		if d.made != nil && d.made.full != nil {
			used++
		}
		return true
	})
	return used
}

// Shapes is how many schemas are kept.
func (r *Registry) Shapes() int {
	r.shapes.mu.Lock()
	defer r.shapes.mu.Unlock()
	return len(r.shapes.by)
}
