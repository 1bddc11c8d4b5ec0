// Package score says which of the nodes that a pod may be on are better.
//
// In come a cycle and the nodes that have passed the filters; out comes, for
// each score, a number from 0 to 100 for each node. scores.go lists the scores
// with their weights. What always holds: scores are pure, and the numbers are
// upstream's.
package score

import (
	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Best is the best that a node can be.
const Best = 100

// Scorer scores nodes.
type Scorer interface {
	// Of is the score of a node, not yet compared with those of others.
	Of(n *snapshot.Node) int64
	// Normalize makes scores of all nodes ones from 0 to Best.
	Normalize(scores []int64)
}

// Score is one kind of reason for which a node is better.
type Score struct {
	// Name is upstream's name of the plugin.
	Name   string
	Weight int64
	// Begin returns what scores nodes, nil when all are equal.
	Begin func(c *cycle.Cycle, nodes []*snapshot.Node) (Scorer, error)
}

// absolute is a score that needs no comparison.
type absolute func(n *snapshot.Node) int64

// Of implements Scorer.
func (a absolute) Of(n *snapshot.Node) int64 { return a(n) }

// Normalize implements Scorer.
func (absolute) Normalize([]int64) {}

// relative is a score of which the largest is Best, or the worst.
type relative struct {
	of       func(n *snapshot.Node) int64
	reversed bool
}

// Of implements Scorer.
func (r relative) Of(n *snapshot.Node) int64 { return r.of(n) }

// Normalize implements Scorer.
func (r relative) Normalize(scores []int64) {
	var largest int64
	for _, s := range scores {
		largest = max(largest, s)
	}
	for i, s := range scores {
		if largest > 0 {
			s = Best * s / largest
		}
		if r.reversed {
			s = Best - s
		}
		scores[i] = s
	}
}
