package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"setpoint.dev/setpoint/node/nodetest"
)

// debian is a layer of packages with all that they depend on. Documents, and
// data that no program here reads, are left out.
func debian(work, name string, packages ...string) (*nodetest.Layer, error) {
	root, err := unpacked(work, name, packages)
	if err != nil {
		return nil, err
	}
	leave := []string{"usr/share/", "usr/include", "var/", "etc/cron"}
	l := nodetest.NewLayer()
	l.HostTree(root, func(rel string) bool {
		return slices.ContainsFunc(leave, func(p string) bool { return strings.HasPrefix(rel, p) })
	})
	return l, nil
}

// unpacked is a folder with the files of packages, fetched as for a machine
// that has none.
func unpacked(work, name string, packages []string) (string, error) {
	work, err := filepath.Abs(work)
	if err != nil {
		return "", err
	}
	root, archives := filepath.Join(work, name), filepath.Join(work, name+".archives")
	done := root + ".done"
	if _, err := os.Stat(done); err == nil {
		return root, nil
	}
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return "", err
	}
	status := filepath.Join(work, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return "", err
	}
	args := []string{
		"-q", "-y", "--download-only", "--no-install-recommends", "-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + archives,
		"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "install",
	}
	if out, err := exec.Command("apt-get", append(args, packages...)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get: %w: %s", err, out)
	}
	fetched, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, archive := range fetched {
		if out, err := exec.Command("dpkg-deb", "-x", archive, root).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", filepath.Base(archive), err, out)
		}
	}
	return root, os.WriteFile(done, nil, 0o644)
}
