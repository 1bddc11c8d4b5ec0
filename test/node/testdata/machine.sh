#!/bin/sh
# machine.sh FOLDER PROGRAM [ARG...] runs a program on a machine of its own: with
# processes, mounts, network, control groups and a name that are nobody else's. It
# has one address, an empty /run, and temporary files in FOLDER, which are gone with
# it. When the program ends, so does all that it started.
set -eu

folder=$1
shift
name=setpoint-$(basename "$folder")

# groups are the mounts of control groups: where, which kind, with which options.
groups() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2, $3, $4 }' /proc/self/mounts; }

inside() {
	# What others have mounted for a while is theirs. The last goes first: one may lie in another.
	awk '$2 ~ "^/(tmp|run|var)/" { print $2 }' /proc/self/mounts | tac | while read -r at; do umount -l "$at"; done
	mount -t proc proc /proc
	held=$(groups)
	mount -t sysfs sysfs /sys
	echo "$held" | grep -q '^/sys/fs/cgroup ' || mount -t tmpfs tmpfs /sys/fs/cgroup
	echo "$held" | while read -r at kind options; do
		mkdir -p "$at"
		mount -t "$kind" -o "$options" "$kind" "$at"
		# In version 2 a group with processes has no groups with limits below it.
		if test "$at" = /sys/fs/cgroup; then mkdir "$at/machine" && echo 1 >"$at/machine/cgroup.procs"; fi
	done
	mount -t tmpfs tmpfs /run
	mount -t tmpfs tmpfs "$folder"
	chmod 1777 "$folder"
	hostname machine
	ip link set lo up
	ip link add eth0 type veth peer name wire && ip link set wire up
	ip address add 192.0.2.10/24 dev eth0
	ip link set eth0 up
	ip route add default via 192.0.2.1
	TMPDIR=$folder "$@"
}

if test "${SETPOINT_MACHINE_STAGE:-}" = inside; then
	unset SETPOINT_MACHINE_STAGE
	inside "$@"
	exit
fi

groups | while read -r at kind _; do
	mkdir "$at/$name"
	for set in cpuset.cpus cpuset.mems; do # a group of version 1 takes nobody without them
		if test "$kind" = cgroup && test -e "$at/$set"; then cat "$at/$set" >"$at/$name/$set"; fi
	done
done
code=0
(
	groups | { while read -r at _; do echo "$at/$name/cgroup.procs"; done; } >"$folder/groups"
	while read -r procs; do echo 0 >"$procs"; done <"$folder/groups"
	SETPOINT_MACHINE_STAGE=inside exec unshare --mount --net --pid --cgroup --ipc --uts --fork --kill-child sh "$0" "$folder" "$@"
) || code=$?
groups | while read -r at _; do find "$at/$name" -depth -type d -exec rmdir {} +; done
exit $code
