// Package process is a container runtime within this binary: it serves CRI v1,
// and its containers are processes of the host.
//
// In come calls on a socket that only its owner may open; out come processes,
// each held by a supervisor of its own (package supervise), their logs, and
// records on disk. A pod's containers share the host's network, processes and
// IPC. Where mounts are permitted (as root, or in a user namespace) a container
// has its volumes, and an image's files as its root if the image is at hand
// (package image); the image named "host" is the host's files. Where mounts are
// not permitted, a container that asks for them is refused. Status says which.
//
// Under Config.Dir:
//
//	sandboxes/ID/sandbox.json     a pod
//	containers/ID/container.json  a container; see supervise for what is beside it
//	images/                       archives and layouts that can be pulled; the user's
//	unpacked/ID/                  images that were
//	cri.sock
//
// What always holds: a record is written whole, before its effect can be seen;
// the runtime can be killed at any moment, and the next one finds what runs and
// how what ended did; what a container started is gone when it has ended. It is
// no barrier against programs that mean harm.
package process

import "log/slog"

// Name is what the runtime calls itself.
const Name = "process"

// HostImage is the image that is the host's files.
const HostImage = "host"

// Config is what a runtime is given.
type Config struct {
	// Dir is where it keeps everything; it is made if it is missing.
	Dir string
	// Socket is where it serves; empty for cri.sock in Dir.
	Socket string
	// Address is that of the node, which its pods share.
	Address string
	// HostImages has every image's name mean the host's files.
	HostImages bool
	// Version is what the runtime says its version is; empty for 1.0.0.
	Version string
	// Logger is nil for the default one.
	Logger *slog.Logger
	// NoMounts has it do without mounts, as where they are not permitted.
	NoMounts bool
}
