//go:build !unix

package probe

func linger(uintptr) {}
