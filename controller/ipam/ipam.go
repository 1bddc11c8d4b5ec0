// Package ipam gives every node the ranges that the addresses of its pods are
// from.
//
// In come nodes; out come their podCIDRs: one part of each range of the cluster,
// which no other node has and which no service address is in. plan.go decides.
// Parts are given in turn, so that one that has come free is not given again at
// once. A node that has ranges keeps them.
package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	listers "k8s.io/client-go/listers/core/v1"

	"setpoint.dev/setpoint/controller/loop"
)

// Settings say what there is to give.
type Settings struct {
	// Allocate says that ranges are given at all. Compat: by default none are.
	Allocate bool
	// Ranges are one, or one of each family.
	Ranges []netip.Prefix
	// Mask4 and Mask6 are the sizes of the parts; 0 means 24 and 64.
	Mask4, Mask6 int
	// Services are ranges that are not given.
	Services []netip.Prefix
}

// Check says what is wrong with settings. Compat: the bounds are upstream's.
func (s Settings) Check() error {
	if s.Allocate && len(s.Ranges) == 0 {
		return errors.New("nodes are to have ranges, but the cluster has none")
	}
	if len(s.Ranges) > 2 || len(s.Ranges) == 2 && s.Ranges[0].Addr().Is4() == s.Ranges[1].Addr().Is4() {
		return errors.New("the cluster's ranges are one, or one of each family")
	}
	for _, r := range s.Ranges {
		if most := r.Addr().BitLen(); s.mask(r) < r.Bits() || s.mask(r) > most || s.mask(r)-r.Bits() > 16 {
			return fmt.Errorf("nodes' parts of %s cannot be /%d: they are at most 65536 parts of the range", r, s.mask(r))
		}
	}
	return nil
}

// mask is the size of the parts of a range.
func (s Settings) mask(of netip.Prefix) int {
	mask, usual := s.Mask6, 64
	if of.Addr().Is4() {
		mask, usual = s.Mask4, 24
	}
	if mask == 0 {
		return usual
	}
	return mask
}

// Controller gives ranges.
type Controller struct {
	*loop.Loop[loop.Key]
	actor    *loop.Actor
	settings Settings
	nodes    listers.NodeLister
	// The one worker alone has these: what was given to nodes that do not show it
	// yet, and which part of each range is next.
	given map[string][]netip.Prefix
	next  []int
}

// New returns the controller.
func New(a *loop.Actor, s Settings) loop.Runner {
	nodes := a.Informers.Core().V1().Nodes()
	c := &Controller{actor: a, settings: s, nodes: nodes.Lister(), given: map[string][]netip.Prefix{}, next: make([]int, len(s.Ranges))}
	c.Loop = loop.New(a, "cidrallocator_node", 1, c.reconcile)
	loop.Watch(c.Loop, "nodes", nodes.Informer(), func(_, after *corev1.Node) []loop.Key {
		if after == nil || len(after.Spec.PodCIDRs) > 0 {
			return nil
		}
		return []loop.Key{loop.KeyOf(after)}
	})
	return c
}

func (c *Controller) reconcile(ctx context.Context, key loop.Key) (time.Duration, error) {
	n, err := c.nodes.Get(key.Name)
	if err != nil || len(n.Spec.PodCIDRs) > 0 || n.DeletionTimestamp != nil {
		return 0, nil //nolint:nilerr // it is not there
	}
	parts, next, err := plan(c.settings, c.taken(n.Name), c.next)
	if err != nil {
		c.actor.Events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}, corev1.EventTypeNormal,
			"CIDRNotAvailable", "Node "+n.Name+" status is now: CIDRNotAvailable")
		return 0, err
	}
	if err := c.give(ctx, n, parts); err != nil {
		return 0, err
	}
	c.given[n.Name], c.next = parts, next
	return 0, nil
}

// taken are the ranges that all nodes but one have.
func (c *Controller) taken(but string) []netip.Prefix {
	all, _ := c.nodes.List(labels.Everything()) // a cache has no errors
	there := map[string]bool{}
	var taken []netip.Prefix
	for _, n := range all {
		there[n.Name] = true
		if len(n.Spec.PodCIDRs) > 0 {
			delete(c.given, n.Name)
		}
		for _, text := range n.Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				taken = append(taken, p.Masked())
			}
		}
	}
	for name, parts := range c.given {
		if !there[name] {
			delete(c.given, name)
		} else if name != but {
			taken = append(taken, parts...)
		}
	}
	return taken
}

func (c *Controller) give(ctx context.Context, n *corev1.Node, parts []netip.Prefix) error {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.String()
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID}, "spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return err
	}
	_, err = c.actor.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
