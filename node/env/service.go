package env

import (
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Service returns the variables that tell where a service is, none for one
// without an address: NAME_SERVICE_HOST and _PORT, and those that docker links
// had.
func Service(s *corev1.Service) map[string]string {
	values := map[string]string{}
	if !addressed(s) {
		return values
	}
	name := variable(s.Name)
	values[name+"_SERVICE_HOST"] = s.Spec.ClusterIP
	values[name+"_SERVICE_PORT"] = strconv.Itoa(int(s.Spec.Ports[0].Port))
	for i, p := range s.Spec.Ports {
		number := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			values[name+"_SERVICE_PORT_"+variable(p.Name)] = number
		}
		protocol := "tcp"
		if p.Protocol != "" {
			protocol = strings.ToLower(string(p.Protocol))
		}
		url := protocol + "://" + net.JoinHostPort(s.Spec.ClusterIP, number)
		if i == 0 {
			values[name+"_PORT"] = url
		}
		link := name + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		values[link] = url
		values[link+"_PROTO"] = protocol
		values[link+"_PORT"] = number
		values[link+"_ADDR"] = s.Spec.ClusterIP
	}
	return values
}

func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

func addressed(s *corev1.Service) bool {
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && len(s.Spec.Ports) > 0
}
