// Package cni gives pods a network where their runtime waits for one.
//
// In comes what a runtime says of itself; out comes, at most once, a file that
// tells the plugins of CNI to put pods on a bridge of this machine. What always
// holds: a folder that has any configuration, whoever wrote it, is left as it is,
// unless it is ours alone and for other addresses.
package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Name is that of our file; it comes before files that others add later.
const Name = "10-setpoint.conflist"

// bridge is the network interface that pods are behind.
const bridge = "setpoint0"

// Folders are where a runtime looks for configurations and plugins.
type Folders struct{ Conf, Bin string }

// Of reads them from a runtime's status, and says whether the runtime waits for a
// network. A runtime that does not tell, or needs none, waits for nothing.
func Of(status *runtimeapi.StatusResponse) (Folders, bool) {
	var said struct {
		CNI struct {
			Conf string `json:"confDir"`
			Bin  string `json:"binDir"`
		} `json:"cni"`
	}
	if err := json.Unmarshal([]byte(status.GetInfo()["config"]), &said); err != nil || said.CNI.Conf == "" {
		return Folders{}, false
	}
	waits := slices.ContainsFunc(status.GetStatus().GetConditions(), func(c *runtimeapi.RuntimeCondition) bool {
		return c.Type == runtimeapi.NetworkReady && !c.Status
	})
	return Folders{said.CNI.Conf, said.CNI.Bin}, waits
}

// Ensure writes a configuration for pods with addresses from ranges, if the folder
// has none or ours, and says whether it did.
func Ensure(f Folders, state string, ranges []netip.Prefix) (bool, error) {
	files, err := os.ReadDir(f.Conf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, other := range files {
		if ext := filepath.Ext(other.Name()); other.Name() != Name && (ext == ".conf" || ext == ".conflist" || ext == ".json") {
			return false, nil
		}
	}
	for _, plugin := range []string{"bridge", "host-local", "portmap"} {
		if _, err := os.Stat(filepath.Join(f.Bin, plugin)); err != nil {
			return false, fmt.Errorf("the CNI plugin %s is not in %s", plugin, f.Bin)
		}
	}
	text, err := configuration(state, ranges)
	if err != nil {
		return false, err
	}
	file := filepath.Join(f.Conf, Name)
	if before, err := os.ReadFile(file); err == nil && bytes.Equal(before, text) {
		return false, nil
	}
	if err := os.MkdirAll(f.Conf, 0o755); err != nil {
		return false, err
	}
	temporary := filepath.Join(f.Conf, "."+Name)
	if err := os.WriteFile(temporary, text, 0o644); err != nil {
		return false, err
	}
	return true, os.Rename(temporary, file)
}

// configuration is a bridge with addresses from ranges, and ports of the node.
func configuration(state string, ranges []netip.Prefix) ([]byte, error) {
	type object = map[string]any
	var pools [][]object
	var routes []object
	for _, r := range ranges {
		pools = append(pools, []object{{"subnet": r.Masked().String()}})
		dst := "0.0.0.0/0"
		if r.Addr().Is6() {
			dst = "::/0"
		}
		routes = append(routes, object{"dst": dst})
	}
	text, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0", "name": "setpoint",
		"plugins": []object{
			{
				"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": object{"type": "host-local", "dataDir": state, "ranges": pools, "routes": routes},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true},
		},
	}, "", "  ")
	return append(text, '\n'), err
}
