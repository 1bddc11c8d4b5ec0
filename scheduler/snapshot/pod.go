package snapshot

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// Pod is a pod with what placing asks of it again and again. It does not change.
type Pod struct {
	Object   *corev1.Pod
	Priority int32
	// Requests are what the pod takes of a node it is on, Wanted what a node must
	// have to take it. They differ for pods that are being resized.
	Requests, Wanted Resources
	// Asked is the processor time and memory of Requests; NonZero counts
	// containers that ask for none with a default, and so does Weighed, which
	// is what a pod that is yet to be placed is weighed by.
	Asked, NonZero, Weighed Amount
	// Ports are those of the host that the pod wants.
	Ports []HostPort
	// Near and Apart are terms of affinity and anti-affinity that must hold,
	// NearIf and ApartIf those that should.
	Near, Apart     []Term
	NearIf, ApartIf []Weighted
	// Claims are the names of the claims that its volumes name, not those that
	// are made for it.
	Claims []string

	class *Class
}

// Term is a term of affinity between pods.
type Term struct {
	Namespaces        sets.Set[string]
	NamespaceSelector labels.Selector
	Selector          labels.Selector
	TopologyKey       string
}

// Weighted is a term that should hold.
type Weighted struct {
	Term
	Weight int64
}

// HostPort is a port of a host.
type HostPort struct {
	IP       string
	Protocol corev1.Protocol
	Port     int32
}

// everyAddress is the address of all of a host.
const everyAddress = "0.0.0.0"

// Conflicts says whether two cannot be had at once.
func (p HostPort) Conflicts(with HostPort) bool {
	return p.Port == with.Port && p.Protocol == with.Protocol && (p.IP == with.IP || p.IP == everyAddress || with.IP == everyAddress)
}

// NewPod returns a pod, or why it cannot be placed by anybody.
func NewPod(pod *corev1.Pod) (*Pod, error) {
	p := &Pod{Object: pod, Priority: corev1helpers.PodPriority(pod), class: ClassOf(pod)}
	p.measure()
	p.Ports = hostPorts(pod)
	for i := range pod.Spec.Volumes {
		if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			p.Claims = append(p.Claims, c.ClaimName)
		}
	}
	return p, p.parseAffinity()
}

func (p *Pod) parseAffinity() (err error) {
	a := p.Object.Spec.Affinity
	if a == nil {
		return nil
	}
	if near := a.PodAffinity; near != nil {
		if p.Near, err = p.terms(near.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("requiredAffinityTerms: %w", err)
		}
		if p.NearIf, err = p.weighted(near.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferredAffinityTerms: %w", err)
		}
	}
	if apart := a.PodAntiAffinity; apart != nil {
		if p.Apart, err = p.terms(apart.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("requiredAntiAffinityTerms: %w", err)
		}
		if p.ApartIf, err = p.weighted(apart.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferredAntiAffinityTerms: %w", err)
		}
	}
	return nil
}

func (p *Pod) terms(from []corev1.PodAffinityTerm) ([]Term, error) {
	var terms []Term
	for i := range from {
		t, err := p.term(&from[i])
		if err != nil {
			return nil, err
		}
		terms = append(terms, t)
	}
	return terms, nil
}

func (p *Pod) weighted(from []corev1.WeightedPodAffinityTerm) ([]Weighted, error) {
	var terms []Weighted
	for i := range from {
		t, err := p.term(&from[i].PodAffinityTerm)
		if err != nil {
			return nil, err
		}
		terms = append(terms, Weighted{t, int64(from[i].Weight)})
	}
	return terms, nil
}

// term reads a term. Who names no namespaces means the pod's own.
func (p *Pod) term(from *corev1.PodAffinityTerm) (t Term, err error) {
	t.TopologyKey = from.TopologyKey
	if t.Selector, err = metav1.LabelSelectorAsSelector(from.LabelSelector); err != nil {
		return t, err
	}
	if t.NamespaceSelector, err = metav1.LabelSelectorAsSelector(from.NamespaceSelector); err != nil {
		return t, err
	}
	t.Namespaces = sets.New(from.Namespaces...)
	if len(from.Namespaces) == 0 && from.NamespaceSelector == nil {
		t.Namespaces.Insert(p.Object.Namespace)
	}
	return t, nil
}

// Matches says whether a term is about pods of a class, whose namespace has
// these labels.
func (t *Term) Matches(c *Class, namespace labels.Set) bool {
	return (t.Namespaces.Has(c.Namespace) || t.NamespaceSelector.Matches(namespace)) && t.Selector.Matches(c.Labels)
}

// Affine says whether the pod has any terms.
func (p *Pod) Affine() bool {
	return len(p.Near)+len(p.Apart)+len(p.NearIf)+len(p.ApartIf) > 0
}

// Class is the pod's class.
func (p *Pod) Class() *Class { return p.class }

// hostPorts are the ports that a pod's lasting containers want of their host.
func hostPorts(pod *corev1.Pod) []HostPort {
	var ports []HostPort
	of := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := HostPort{p.HostIP, p.Protocol, p.HostPort}
			if port.IP == "" {
				port.IP = everyAddress
			}
			if port.Protocol == "" {
				port.Protocol = corev1.ProtocolTCP
			}
			ports = append(ports, port)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			of(c)
		}
	}
	for i := range pod.Spec.Containers {
		of(&pod.Spec.Containers[i])
	}
	return ports
}
