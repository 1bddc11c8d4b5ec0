package autoscaler

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelpers "k8s.io/component-helpers/resource"

	"setpoint.dev/setpoint/controller/pods"
)

// How long a pod may take to begin, while what it uses of processors does not
// count unless it is ready; how soon after its start a pod that has never been
// ready is told apart from one that was; and by how much usage may differ from
// its target where an autoscaler does not say. Compat: as upstream.
const (
	beginning = 5 * time.Minute
	readyIn   = 30 * time.Second
	tolerance = 0.1
)

// tolerances are by how much a ratio may be below and above 1.
type tolerances struct{ down, up float64 }

func (t tolerances) allow(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

func tolerancesOf(h *autoscalingv2.HorizontalPodAutoscaler) tolerances {
	t := tolerances{tolerance, tolerance}
	if b := h.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

// scope is what replicas are proposed from.
type scope struct {
	namespace  string
	pods       []*corev1.Pod
	spec, have int32 // replicas that the target is to have, and has
	tolerances tolerances
	now        time.Time
}

// proposal is how many replicas a metric asks for, and what it says now.
type proposal struct {
	replicas int32
	current  autoscalingv2.MetricValueStatus
}

var (
	errNoPods    = errors.New("no pods returned by selector while calculating replica count")
	errNoMetrics = errors.New("did not receive metrics for targeted pods (pods might be unready)")
)

// ready counts pods that run and are ready.
func (s scope) ready() (int, error) {
	if len(s.pods) == 0 {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
	}
	n := 0
	for _, p := range s.pods {
		if p.Status.Phase == corev1.PodRunning && pods.Ready(p) {
			n++
		}
	}
	return n, nil
}

// whole makes a number of replicas of a ratio.
func whole(n float64) int32 {
	return int32(min(math.Ceil(n), math.MaxInt32))
}

// byTotal proposes replicas so that a total comes to its target.
func (s scope) byTotal(total, target int64) (proposal, error) {
	p := proposal{replicas: s.spec, current: autoscalingv2.MetricValueStatus{Value: resource.NewMilliQuantity(total, resource.DecimalSI)}}
	ratio := float64(total) / float64(target)
	if s.tolerances.allow(ratio) {
		return p, nil
	}
	ready, err := s.ready()
	p.replicas = whole(ratio * float64(ready))
	return p, err
}

// byShare proposes replicas so that a total, shared by all that there are, comes
// to its target.
func (s scope) byShare(total, target int64) proposal {
	p := proposal{replicas: s.have}
	if ratio := float64(total) / (float64(target) * float64(s.have)); !s.tolerances.allow(ratio) {
		p.replicas = whole(float64(total) / float64(target))
	}
	share := total
	if total < math.MaxInt64 {
		share = int64(math.Ceil(float64(total) / float64(s.have)))
	}
	p.current.AverageValue = resource.NewMilliQuantity(share, resource.DecimalSI)
	return p
}

// byAverage proposes replicas so that what pods are measured at comes to target
// on average. name is the resource that is measured, if it is one.
func (s scope) byAverage(of map[string]Sample, target int64, name corev1.ResourceName) (proposal, error) {
	average := int64(0)
	n, err := s.byRatio(of, name, func(of map[string]Sample, first bool) (float64, error) {
		sum := int64(0)
		for _, m := range of {
			sum += m.Value
		}
		mean := sum / int64(len(of))
		if first {
			average = mean
		}
		return float64(mean) / float64(target), nil
	}, func(string) int64 { return target })
	return proposal{replicas: n, current: autoscalingv2.MetricValueStatus{AverageValue: quantity(name, average)}}, err
}

// byUtilization proposes replicas so that what pods use comes to a share of what
// they request, in percent.
func (s scope) byUtilization(of map[string]Sample, target int32, name corev1.ResourceName, container string) (proposal, error) {
	if len(s.pods) == 0 {
		return proposal{}, errNoPods
	}
	requests, requestsErr := s.requests(name, container)
	var percent int32
	var average int64
	n, err := s.byRatio(of, name, func(of map[string]Sample, first bool) (float64, error) {
		if requestsErr != nil {
			return 0, requestsErr
		}
		used, requested, entries := int64(0), int64(0), int64(0)
		for name, m := range of {
			if request, known := requests[name]; known {
				used, requested, entries = used+m.Value, requested+request, entries+1
			}
		}
		if requested == 0 {
			return 0, errors.New("no metrics returned matched known pods")
		}
		now := int32(used * 100 / requested)
		if first {
			percent, average = now, used/entries
		}
		return float64(now) / float64(target), nil
	}, func(pod string) int64 { return requests[pod] * int64(max(100, target)) / 100 })
	return proposal{replicas: n, current: autoscalingv2.MetricValueStatus{AverageUtilization: &percent, AverageValue: quantity(name, average)}}, err
}

// quantity is an amount as servers of metrics write it.
func quantity(name corev1.ResourceName, thousandths int64) *resource.Quantity {
	format := resource.DecimalSI
	if name == corev1.ResourceMemory {
		format = resource.BinarySI
	}
	return resource.NewMilliQuantity(thousandths, format)
}

// byRatio proposes replicas from samples of pods. ratio is how much they are of
// what is wanted; it is asked first for what is known, and again with guesses
// that keep the change small: for pods that are missing, nothing on the way up
// and full on the way down, and for pods that are not ready nothing on the way
// up.
func (s scope) byRatio(samples map[string]Sample, name corev1.ResourceName, ratio func(of map[string]Sample, first bool) (float64, error), full func(pod string) int64) (int32, error) {
	if len(s.pods) == 0 {
		return 0, errNoPods
	}
	g := s.group(samples, name)
	of := maps.Clone(samples)
	for _, p := range slices.Concat(g.ignored, g.unready) {
		delete(of, p)
	}
	if len(of) == 0 {
		return 0, errNoMetrics
	}
	was, err := ratio(of, true)
	if err != nil {
		return 0, err
	}
	guessed := len(g.unready) > 0 && was > 1
	if !guessed && len(g.missing) == 0 {
		if s.tolerances.allow(was) {
			return s.spec, nil
		}
		return whole(was * float64(g.ready)), nil
	}
	for _, p := range g.missing {
		switch {
		case was < 1:
			of[p] = Sample{Value: full(p)}
		case was > 1:
			of[p] = Sample{}
		}
	}
	if guessed {
		for _, p := range g.unready {
			of[p] = Sample{}
		}
	}
	is, err := ratio(of, false)
	if err != nil {
		return 0, err
	}
	n := whole(is * float64(len(of)))
	if s.tolerances.allow(is) || was < 1 && is > 1 || was > 1 && is < 1 || is < 1 && n > s.spec || is > 1 && n < s.spec {
		return s.spec, nil // the guesses would turn the direction
	}
	return n, nil
}

// groups are pods by what their samples say.
type groups struct {
	ready                     int
	unready, missing, ignored []string
}

func (s scope) group(samples map[string]Sample, name corev1.ResourceName) groups {
	var g groups
	for _, p := range s.pods {
		m, measured := samples[p.Name]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed:
			g.ignored = append(g.ignored, p.Name)
		case p.Status.Phase == corev1.PodPending:
			g.unready = append(g.unready, p.Name)
		case !measured:
			g.missing = append(g.missing, p.Name)
		case name == corev1.ResourceCPU && begins(p, m, s.now):
			g.unready = append(g.unready, p.Name)
		default:
			g.ready++
		}
	}
	return g
}

// begins says that what a pod uses of processors is that of its start.
func begins(p *corev1.Pod, m Sample, now time.Time) bool {
	c := pods.Condition(p, corev1.PodReady)
	if c == nil || p.Status.StartTime == nil {
		return true
	}
	started := p.Status.StartTime.Time
	if started.Add(beginning).After(now) {
		return c.Status == corev1.ConditionFalse || m.At.Before(c.LastTransitionTime.Add(m.Window))
	}
	return c.Status == corev1.ConditionFalse && started.Add(readyIn).After(c.LastTransitionTime.Time)
}

// requests are what pods request of a resource, by name: one container of each,
// or with "" all of it.
func (s scope) requests(name corev1.ResourceName, container string) (map[string]int64, error) {
	all := map[string]int64{}
	for _, p := range s.pods {
		n, err := request(p, name, container)
		if err != nil {
			return nil, err
		}
		all[p.Name] = n
	}
	return all, nil
}

func request(p *corev1.Pod, name corev1.ResourceName, container string) (int64, error) {
	if container == "" && resourcehelpers.IsPodLevelRequestsSet(p) {
		n, has := resourcehelpers.PodRequests(p, resourcehelpers.PodResourcesOptions{})[name]
		if !has {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", name, p.Name)
		}
		return n.MilliValue(), nil
	}
	sum, found := int64(0), container == ""
	for _, c := range slices.Concat(p.Spec.Containers, sidecars(p)) {
		if container != "" && c.Name != container {
			continue
		}
		found = true
		n, has := c.Resources.Requests[name]
		if !has {
			return 0, fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, p.Name)
		}
		sum += n.MilliValue()
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
	}
	return sum, nil
}

func sidecars(p *corev1.Pod) []corev1.Container {
	var all []corev1.Container
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}
