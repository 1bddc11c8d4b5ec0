package servicestest

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"setpoint.dev/setpoint/controller/services"
)

// Describe tells changes to slices as text, in an order of its own. More than
// ten endpoints are counted.
func Describe(ch services.Changes) string {
	var lines []string
	for _, s := range ch.Create {
		lines = append(lines, "create "+describeSlice(s))
	}
	for _, s := range ch.Update {
		lines = append(lines, "update "+describeSlice(s))
	}
	for _, s := range ch.Delete {
		lines = append(lines, "delete "+s.Name+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func describeSlice(s *discoveryv1.EndpointSlice) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s %s labels=%v annotations=%v owner=%s\n", s.Name, s.GenerateName, s.AddressType, s.Labels, s.Annotations, s.OwnerReferences[0].Kind)
	for _, p := range s.Ports {
		fmt.Fprintf(&b, "  port %s %d/%s\n", *p.Name, *p.Port, *p.Protocol)
	}
	var lines []string
	for i := range s.Endpoints {
		lines = append(lines, describeEndpoint(&s.Endpoints[i]))
	}
	if slices.Sort(lines); len(lines) > 10 {
		lines = []string{fmt.Sprintf("  %d endpoints", len(lines))}
	}
	for _, line := range lines {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

func describeEndpoint(e *discoveryv1.Endpoint) string {
	var text strings.Builder
	text.WriteString("  " + strings.Join(e.Addresses, ","))
	text.WriteString(flag(" ready", e.Conditions.Ready) + flag(" serving", e.Conditions.Serving) + flag(" terminating", e.Conditions.Terminating))
	for _, f := range []struct {
		name  string
		value *string
	}{{"node", e.NodeName}, {"zone", e.Zone}, {"hostname", e.Hostname}} {
		if f.value != nil {
			text.WriteString(" " + f.name + "=" + *f.value)
		}
	}
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			text.WriteString(" for zone " + z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			text.WriteString(" for node " + n.Name)
		}
	}
	return text.String()
}

// flag tells one that is set, with its value where it is not true.
func flag(name string, is *bool) string {
	switch {
	case is == nil:
		return ""
	case *is:
		return name
	}
	return " not" + name
}
