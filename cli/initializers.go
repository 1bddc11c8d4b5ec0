package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/app"
)

// initializerFlags adds the flags that say how objects wait for initializers.
func initializerFlags(c *cobra.Command, of *app.Config) {
	cfg := &of.Initializers
	f := c.Flags()
	f.Var(patience{&cfg.DefaultTimeout}, "initializer-default-timeout", "how long an initializer may take whose configuration does not say, before its object fails; 0 is for ever")
	f.StringSliceVar(&cfg.ExemptNamespaces, "initializer-exempt-namespaces", []string{"kube-system", "kube-node-lease"}, "namespaces whose objects wait for no initializer")
	f.IntVar(&cfg.MaxWaiting, "initializer-max-waiting", 500, "how many creates may wait for initializers at once")
	f.BoolVar(&cfg.StrictOwnership, "initializer-strict-ownership", false, "let nobody take an initializer off an object, or move it, but its owner")
	f.Var(&unless{&cfg.SkipFinalAdmission}, "initializer-final-admission", "check what initializers made of an object as if its creator had asked for that (default true)")
	f.Lookup("initializer-final-admission").NoOptDefVal = "true"
}

// patience is a time that ten minutes stand for when it is not given, and that
// does not end when it is 0.
type patience struct{ value *time.Duration }

// String implements pflag.Value.
func (p patience) String() string {
	switch {
	case p.value == nil || *p.value == 0:
		return (10 * time.Minute).String()
	case *p.value < 0:
		return "0s"
	default:
		return p.value.String()
	}
}

// Set implements pflag.Value.
func (p patience) Set(text string) error {
	d, err := time.ParseDuration(text)
	if d <= 0 {
		d = -1
	}
	*p.value = d
	return err
}

// Type implements pflag.Value.
func (p patience) Type() string { return "duration" }

// unless is a switch for what is on unless the value says that it is not.
type unless struct{ value *bool }

// String implements pflag.Value.
func (u *unless) String() string {
	if u.value == nil {
		return ""
	}
	return strconv.FormatBool(!*u.value)
}

// Set implements pflag.Value.
func (u *unless) Set(text string) error {
	on, err := strconv.ParseBool(text)
	*u.value = !on
	return err
}

// Type implements pflag.Value.
func (u *unless) Type() string { return "bool" }
