package admission_test

import (
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/admission"
)

func TestWhichPluginsAreAskedFor(t *testing.T) {
	for _, c := range []struct {
		name            string
		enable, disable []string
		refused         string
	}{
		{name: "none but the default"},
		{name: "one that is off", enable: []string{"AlwaysPullImages"}},
		{name: "one that is on", disable: []string{"Priority"}},
		{name: "one whose kinds are not served", enable: []string{"JobValidation"}},
		{name: "one that there is not", enable: []string{"Nothing"}, refused: `enable-admission-plugins plugin "Nothing" is unknown`},
		{name: "none of one that there is not", disable: []string{"Nothing"}, refused: `disable-admission-plugins plugin "Nothing" is unknown`},
		{
			name: "both ways", enable: []string{"Priority", "AlwaysDeny"}, disable: []string{"AlwaysDeny", "Priority"},
			refused: "[AlwaysDeny Priority] in enable-admission-plugins and disable-admission-plugins overlapped",
		},
		{name: "one that needs a configuration", enable: []string{"ImagePolicyWebhook"}, refused: "ImagePolicyWebhook"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := admission.New(admission.Config{Options: admission.Options{Enable: c.enable, Disable: c.disable}, Authorizer: anybody{}})
			switch {
			case err == nil && c.refused != "":
				t.Errorf("no error that says %q", c.refused)
			case err != nil && (c.refused == "" || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("error %v, want one that says %q", err, c.refused)
			}
		})
	}
}

// anybody may do anything.
type anybody struct{ authorizer.Authorizer }
