package serviceip

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/kinds"
)

var errPortTaken = errors.New("provided port is already allocated")

// fillPorts gives a new service its node ports. Two ports with one number, for
// two protocols, share one.
func (d *draft) fillPorts() error {
	if hasPorts(d.service) {
		if err := d.fillNodePorts(); err != nil {
			return err
		}
	}
	if needsHealthPort(d.service) {
		return d.fillHealthPort()
	}
	return nil
}

func (d *draft) fillNodePorts() error {
	ports := d.service.Spec.Ports
	shared := map[int32]int32{} // node port by port
	for i := range ports {
		p := &ports[i]
		if p.NodePort == 0 && !wantsPorts(d.service) {
			continue
		}
		have, known := shared[p.Port]
		switch {
		case known && p.NodePort == 0:
			p.NodePort = have
			continue
		case known && p.NodePort == have:
			continue
		case known:
			if err := d.claimNamed(i, p.NodePort); err != nil {
				return err
			}
			continue
		}
		if p.NodePort == 0 {
			// Another port of the same number may name the one to share.
			if at := slices.IndexFunc(ports, func(o core.ServicePort) bool { return o.Port == p.Port && o.NodePort != 0 }); at >= 0 {
				p.NodePort = ports[at].NodePort
			}
		}
		if p.NodePort != 0 {
			if err := d.claimNamed(i, p.NodePort); err != nil {
				return err
			}
		} else if err := d.fillNodePort(p); err != nil {
			return err
		}
		shared[p.Port] = p.NodePort
	}
	return nil
}

func (d *draft) claimNamed(i int, port int32) error {
	if err := d.claimPort(int(port)); err != nil {
		return d.invalid(field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port, err.Error()))
	}
	return nil
}

func (d *draft) fillNodePort(p *core.ServicePort) error {
	port, err := d.findPort()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
	}
	p.NodePort = int32(port)
	return nil
}

func (d *draft) fillHealthPort() error {
	spec := &d.service.Spec
	if spec.HealthCheckNodePort != 0 {
		if err := d.claimPort(int(spec.HealthCheckNodePort)); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", spec.HealthCheckNodePort, err))
		}
		return nil
	}
	port, err := d.findPort()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", port, err))
	}
	spec.HealthCheckNodePort = int32(port)
	return nil
}

// changePorts claims and returns what an update makes necessary.
func (d *draft) changePorts(old *core.Service) error {
	if hasPorts(d.service) {
		if err := d.changeNodePorts(old); err != nil {
			return err
		}
	}
	had, has := needsHealthPort(old), needsHealthPort(d.service)
	if !had && has {
		if err := d.fillHealthPort(); err != nil {
			return err
		}
	}
	var kept []int
	if hasPorts(d.service) {
		kept = nodePorts(d.service)
	}
	if had && has {
		kept = append(kept, int(old.Spec.HealthCheckNodePort))
	}
	for _, port := range heldPorts(old) {
		if slices.Contains(kept, port) {
			continue
		}
		if err := d.returnPort(port); err != nil {
			return err
		}
	}
	return nil
}

func (d *draft) changeNodePorts(old *core.Service) error {
	had := nodePorts(old)
	type use struct {
		Protocol core.Protocol
		NodePort int32
	}
	var uses []use
	for i := range d.service.Spec.Ports {
		p := &d.service.Spec.Ports[i]
		switch {
		case p.NodePort == 0 && !wantsPorts(d.service):
			continue
		case p.NodePort == 0:
			if err := d.fillNodePort(p); err != nil {
				return err
			}
		case !slices.Contains(had, int(p.NodePort)) && !d.claimed[int(p.NodePort)]:
			if err := d.claimNamed(i, p.NodePort); err != nil {
				return err
			}
		}
		u := use{p.Protocol, p.NodePort}
		if slices.Contains(uses, u) {
			// Compat: upstream answers with a bare error.
			return &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: fmt.Sprintf("duplicate nodePort: %v", u),
			}}
		}
		uses = append(uses, u)
	}
	return nil
}

// claimPort takes a port that the service names.
func (d *draft) claimPort(port int) error {
	// Compat: a dry run does not look at the range.
	if !d.dryRun && !d.ports.Contains(port) {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", d.ports)
	}
	taken, err := d.isPortTaken(port)
	switch {
	case err != nil:
		return err
	case taken:
		return errPortTaken
	}
	return d.keepPort(port)
}

// findPort takes any free port. Compat: the low part of the range is left to
// those who ask for a port by number, while there are others.
func (d *draft) findPort() (int, error) {
	if d.dryRun {
		return d.pretendPort(), nil
	}
	low := 0
	if d.ports.Size > 16 {
		low = min(max(d.ports.Size/32, 16), 128)
	}
	for _, part := range [][2]int{{low, d.ports.Size}, {0, low}} {
		span := part[1] - part[0]
		if span == 0 {
			continue
		}
		start := rand.IntN(span)
		for i := range span {
			port := d.ports.Base + part[0] + (start+i)%span
			taken, err := d.isPortTaken(port)
			if err != nil {
				return 0, err
			}
			if !taken {
				return port, d.keepPort(port)
			}
		}
	}
	return 0, errFull
}

// pretendPort is what a dry run shows for a port that would be found. Compat:
// it follows the highest that the service names, or is outside of the range.
func (d *draft) pretendPort() int {
	port := 0
	for claimed := range d.claimed {
		port = max(port, claimed)
	}
	if port == 0 {
		port = 32768
	}
	d.claimed[port+1] = true
	return port + 1
}

func (d *draft) isPortTaken(port int) (bool, error) {
	if d.claimed[port] {
		return true, nil
	}
	value, err := d.stored.Get(d.ctx, portsTable, strconv.Itoa(port))
	return value != nil, err
}

func (d *draft) keepPort(port int) error {
	value, err := json.Marshal(portEntry{Service: d.ownerKey()})
	if err != nil {
		return err
	}
	d.claimed[port] = true
	d.companions = append(d.companions, kinds.Companion{Table: portsTable, Key: strconv.Itoa(port), Value: value})
	return nil
}

func (d *draft) returnPort(port int) error {
	return d.returnEntry(portsTable, strconv.Itoa(port), func(s claim) bool { return s.Service == d.ownerKey() })
}

// hasPorts says that the service is of a type with node ports.
func hasPorts(s *core.Service) bool {
	return s.Spec.Type == core.ServiceTypeNodePort || s.Spec.Type == core.ServiceTypeLoadBalancer
}

// wantsPorts says that the service gets node ports that it does not name.
func wantsPorts(s *core.Service) bool {
	always := s.Spec.AllocateLoadBalancerNodePorts
	return s.Spec.Type == core.ServiceTypeNodePort || s.Spec.Type == core.ServiceTypeLoadBalancer && (always == nil || *always)
}

func needsHealthPort(s *core.Service) bool { return apiservice.NeedsHealthCheck(s) }

// nodePorts are the node ports of a service's ports.
func nodePorts(s *core.Service) []int {
	var ports []int
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, int(p.NodePort))
		}
	}
	return ports
}

// heldPorts are all ports that a service has claimed.
func heldPorts(s *core.Service) []int {
	ports := nodePorts(s)
	if needsHealthPort(s) && s.Spec.HealthCheckNodePort != 0 {
		ports = append(ports, int(s.Spec.HealthCheckNodePort))
	}
	return ports
}
