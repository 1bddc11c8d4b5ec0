//go:build linux

package process

import (
	"bufio"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/process/inside"
	"setpoint.dev/setpoint/node/process/supervise"
)

// account is a line of /etc/passwd or of /etc/group.
type account struct {
	name string
	id   uint32
	gid  uint32   // of a user
	rest []string // of a user: comment, home, shell; of a group: its members
}

// accounts reads /etc/passwd or /etc/group of an image. What is missing or broken
// has no lines.
func (im *img) accounts(file string) []account {
	root, err := inside.Open(cmp.Or(im.Root, "/"))
	if err != nil {
		return nil
	}
	defer root.Close() //nolint:errcheck // only a handle to a folder
	f, err := root.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // it was only read
	var all []account
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			continue
		}
		a := account{name: fields[0], id: uint32(id)}
		if gid, err := strconv.ParseUint(fields[3], 10, 32); err == nil && len(fields) > 4 {
			a.gid, a.rest = uint32(gid), fields[4:]
		} else {
			a.rest = strings.Split(fields[3], ",")
		}
		all = append(all, a)
	}
	return all
}

// home is the folder of a user.
func (im *img) home(uid uint32) string {
	for _, a := range im.accounts("/etc/passwd") {
		if a.id == uid && len(a.rest) > 1 && a.rest[1] != "" {
			return a.rest[1]
		}
	}
	return "/"
}

// identify finds out who a container runs as: whoever is asked for, or the
// image's user. Where the node has one user alone, that one is seen under the
// number that was asked for; without namespaces it can be no other.
func (r *Runtime) identify(c *container, im *img) error {
	security := c.Config.P.GetLinux().GetSecurityContext()
	u, err := im.user(security)
	if err != nil {
		return err
	}
	u.Groups = im.groups(u, security)
	ours := supervise.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	switch {
	case r.mounts == mountsAsRoot || os.Geteuid() == 0 && r.mounts == mountsNone:
		c.User, c.Spec.User = u, &u
	case r.mounts == mountsAsUser:
		u.Groups = nil // nobody but root may join groups
		if c.User = u; u.UID != 0 || u.GID != 0 {
			c.Spec.User = &u
		}
	case u.UID != ours.UID:
		return status.Errorf(codes.FailedPrecondition, "a container cannot run as user %d: the node runs as user %d: %s", u.UID, ours.UID, r.why)
	default:
		c.User = ours
	}
	return nil
}

// user finds the user of a container.
func (im *img) user(security *runtimeapi.LinuxContainerSecurityContext) (supervise.User, error) {
	if security.GetRunAsGroup() != nil && security.GetRunAsUser() == nil && security.GetRunAsUsername() == "" {
		return supervise.User{}, status.Errorf(codes.InvalidArgument, "user group %q is specified without user", strconv.FormatInt(security.GetRunAsGroup().GetValue(), 10))
	}
	name, group, _ := strings.Cut(im.User, ":")
	switch {
	case security.GetRunAsUser() != nil:
		name, group = strconv.FormatInt(security.GetRunAsUser().GetValue(), 10), ""
	case security.GetRunAsUsername() != "":
		name, group = security.GetRunAsUsername(), ""
	case name == "" && im.Root == "":
		name, group = strconv.Itoa(os.Geteuid()), strconv.Itoa(os.Getegid())
	}
	if security.GetRunAsGroup() != nil {
		group = strconv.FormatInt(security.GetRunAsGroup().GetValue(), 10)
	}
	u := supervise.User{}
	uid, err := strconv.ParseUint(cmp.Or(name, "0"), 10, 32)
	known := slices.IndexFunc(im.accounts("/etc/passwd"), func(a account) bool {
		return a.name == name || err == nil && uint64(a.id) == uid
	})
	switch {
	case known >= 0:
		a := im.accounts("/etc/passwd")[known]
		u.UID, u.GID = a.id, a.gid
	case err != nil:
		return u, status.Errorf(codes.NotFound, "failed to get user %q: no users found", name)
	default:
		u.UID = uint32(uid)
	}
	if group == "" {
		return u, nil
	}
	if gid, err := strconv.ParseUint(group, 10, 32); err == nil {
		u.GID = uint32(gid)
		return u, nil
	}
	for _, a := range im.accounts("/etc/group") {
		if a.name == group {
			u.GID = a.id
			return u, nil
		}
	}
	return u, status.Errorf(codes.NotFound, "failed to get group %q: no groups found", group)
}

// groups are those a user is in beside the first: asked for, and, unless only
// those are wanted, of the image.
func (im *img) groups(u supervise.User, security *runtimeapi.LinuxContainerSecurityContext) []uint32 {
	groups := []uint32{u.GID}
	for _, gid := range security.GetSupplementalGroups() {
		groups = append(groups, uint32(gid))
	}
	if security.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge {
		var name string
		for _, a := range im.accounts("/etc/passwd") {
			if a.id == u.UID {
				name = a.name
				break
			}
		}
		for _, a := range im.accounts("/etc/group") {
			if name != "" && slices.Contains(a.rest, name) {
				groups = append(groups, a.id)
			}
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// capabilityNames are the capabilities by their numbers.
var capabilityNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
	"SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
	"AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
	"PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// Compat: what containers have unless they say otherwise, as with other runtimes.
var usual = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_MKNOD, unix.CAP_NET_RAW, unix.CAP_SETGID,
	unix.CAP_SETUID, unix.CAP_SETFCAP, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_KILL, unix.CAP_AUDIT_WRITE,
}

// capabilities are those a container may have at most.
func capabilities(asked *runtimeapi.Capability) []int {
	keep := slices.Clone(usual)
	all := func(names []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, "ALL") })
	}
	if all(asked.GetAddCapabilities()) {
		keep = keep[:0]
		for n := range capabilityNames {
			keep = append(keep, n)
		}
	}
	if all(asked.GetDropCapabilities()) {
		keep = keep[:0]
	}
	number := func(name string) int {
		return slices.Index(capabilityNames, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
	}
	for _, name := range asked.GetAddCapabilities() {
		if n := number(name); n >= 0 && !slices.Contains(keep, n) {
			keep = append(keep, n)
		}
	}
	for _, name := range asked.GetDropCapabilities() {
		if n := number(name); n >= 0 {
			keep = slices.DeleteFunc(keep, func(k int) bool { return k == n })
		}
	}
	slices.Sort(keep)
	return keep
}
