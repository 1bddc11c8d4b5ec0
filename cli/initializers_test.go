package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/app"
)

func TestInitializerFlags(t *testing.T) {
	usual := []string{"kube-system", "kube-node-lease"}
	for _, c := range []struct {
		name, args string
		want       initializer.Settings
	}{
		{"none", "", initializer.Settings{ExemptNamespaces: usual, MaxWaiting: 500}},
		{"a time", "--initializer-default-timeout=90s", initializer.Settings{DefaultTimeout: 90 * time.Second, ExemptNamespaces: usual, MaxWaiting: 500}},
		{"for ever", "--initializer-default-timeout=0", initializer.Settings{DefaultTimeout: -1, ExemptNamespaces: usual, MaxWaiting: 500}},
		{"other namespaces", "--initializer-exempt-namespaces=a,b", initializer.Settings{ExemptNamespaces: []string{"a", "b"}, MaxWaiting: 500}},
		{"no namespace", "--initializer-exempt-namespaces=", initializer.Settings{ExemptNamespaces: []string{}, MaxWaiting: 500}},
		{"all others", "--initializer-max-waiting=7 --initializer-strict-ownership --initializer-final-admission=false", initializer.Settings{
			ExemptNamespaces: usual, MaxWaiting: 7, StrictOwnership: true, SkipFinalAdmission: true,
		}},
		{"final admission", "--initializer-final-admission", initializer.Settings{ExemptNamespaces: usual, MaxWaiting: 500}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var cfg app.Config
			command := &cobra.Command{}
			initializerFlags(command, &cfg)
			if err := command.ParseFlags(strings.Fields(c.args)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, cfg.Initializers); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, bad := range []string{"--initializer-default-timeout=soon", "--initializer-final-admission=perhaps", "--initializer-max-waiting=many"} {
		command := &cobra.Command{}
		initializerFlags(command, &app.Config{})
		if err := command.ParseFlags([]string{bad}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
