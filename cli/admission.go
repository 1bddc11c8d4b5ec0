package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/admission/tolerations"
)

// admissionFlags adds the flags that say what objects pass before they are
// stored. They are kube-apiserver's.
func admissionFlags(c *cobra.Command, cfg *admission.Options) {
	f := c.Flags()
	on, off := admission.Names()
	f.StringSliceVar(&cfg.Enable, "enable-admission-plugins", nil, "admission plugins that run beside those that run by default: "+strings.Join(off, ", "))
	f.StringSliceVar(&cfg.Disable, "disable-admission-plugins", nil, "admission plugins that do not run although they do by default: "+strings.Join(on, ", "))
	f.StringVar(&cfg.File, "admission-control-config-file", "", "AdmissionConfiguration file: what plugins are to do")
	cfg.NotReadySeconds, cfg.UnreachableSeconds = new(int64), new(int64)
	f.Int64Var(cfg.NotReadySeconds, "default-not-ready-toleration-seconds", tolerations.DefaultSeconds, "how long pods stay on a node that is not ready, unless they say")
	f.Int64Var(cfg.UnreachableSeconds, "default-unreachable-toleration-seconds", tolerations.DefaultSeconds, "how long pods stay on a node that cannot be reached, unless they say")
}
