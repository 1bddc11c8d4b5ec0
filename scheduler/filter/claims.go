package filter

import "setpoint.dev/setpoint/scheduler/cycle"

// resourceClaims is for pods that want devices. Nobody allocates them here, so a
// pod that wants some stays where it is and says why.
var resourceClaims = Filter{
	Name: "DynamicResources",
	Begin: func(c *cycle.Cycle) (Check, *Rejection, error) {
		if len(c.Pod.Object.Spec.ResourceClaims) == 0 {
			return nil, nil, nil
		}
		return nil, final("resource claims are not allocated by this scheduler"), nil
	},
}
