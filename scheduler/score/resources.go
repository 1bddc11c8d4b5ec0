package score

import (
	"math"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// beginLeastAllocated prefers nodes that have more left.
func beginLeastAllocated(c *cycle.Cycle, _ []*snapshot.Node) (Scorer, error) {
	want := c.Pod.Weighed
	return absolute(func(n *snapshot.Node) int64 {
		var sum, parts int64
		left := func(used, has int64) {
			if has == 0 {
				return
			}
			parts++
			if used <= has {
				sum += (has - used) * Best / has
			}
		}
		left(n.NonZero.MilliCPU+want.MilliCPU, n.Allocatable.MilliCPU)
		left(n.NonZero.Memory+want.Memory, n.Allocatable.Memory)
		if parts == 0 {
			return 0
		}
		return sum / parts
	}), nil
}

// beginBalanced prefers nodes whose processors and memory the pod makes more
// evenly used.
func beginBalanced(c *cycle.Cycle, _ []*snapshot.Node) (Scorer, error) {
	want := c.Pod.Asked
	if want == (snapshot.Amount{}) {
		return nil, nil
	}
	return absolute(func(n *snapshot.Node) int64 {
		without := evenness(n, n.Requested.MilliCPU, n.Requested.Memory)
		with := evenness(n, n.Requested.MilliCPU+want.MilliCPU, n.Requested.Memory+want.Memory)
		return Best/2 + (Best/2+with-without)/2
	}), nil
}

// evenness is how far apart the parts of processors and memory are that are used.
func evenness(n *snapshot.Node, cpu, memory int64) int64 {
	if n.Allocatable.MilliCPU == 0 || n.Allocatable.Memory == 0 {
		return Best
	}
	a := min(float64(cpu)/float64(n.Allocatable.MilliCPU), 1)
	b := min(float64(memory)/float64(n.Allocatable.Memory), 1)
	return int64((1 - math.Abs((a-b)/2)) * Best)
}
