//go:build !linux

package cgroup

// Unified reports whether the kernel's groups are of version 2.
func Unified() bool { return false }

func pageSizes() []string { return nil }

func swapLimited() bool { return false }

func allowed(score int64) int64 { return score }

func writable(string) (map[string]string, []string) { return nil, nil }

func makeGroup(string, string, bool) error { return nil }

func writeValue(string, string) error { return nil }

func removeGroup(string) error { return nil }

func removeEmpty(string) {}
