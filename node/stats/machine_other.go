//go:build !linux

package stats

import (
	"time"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// machine is a machine of which nothing is known.
type machine struct{}

func (machine) processor() (uint64, bool)                            { return 0, false }
func (machine) booted() time.Time                                    { return time.Time{} }
func (machine) memory() (*statsapi.MemoryStats, *statsapi.SwapStats) { return nil, nil }
func (machine) processes() *statsapi.RlimitStats                     { return nil }
func (machine) interfaces(int) []statsapi.InterfaceStats             { return nil }
func (machine) mainInterface() string                                { return "" }
func (machine) disk(string) *statsapi.FsStats                        { return nil }
