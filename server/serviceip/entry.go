package serviceip

import (
	"encoding/json"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/kinds"
)

// Tables of the store.
const (
	addressesTable = "ipaddresses.networking.k8s.io"
	rangesTable    = "servicecidrs.networking.k8s.io"
	servicesTable  = "services"
	endpointsTable = "endpoints"
	// portsTable is no kind's: upstream keeps what it says in one object that
	// the API does not show.
	portsTable = "servicenodeports"
)

// portEntry is what lies under a port in portsTable.
type portEntry struct {
	Service string `json:"service"` // namespace/name
}

// claim is the little that has to be known of an entry before it is removed.
type claim struct {
	portEntry
	Metadata metav1.ObjectMeta          `json:"metadata"`
	Spec     networkingv1.IPAddressSpec `json:"spec"`
}

// returnEntry removes an entry if it is there and is ours. What finalizers hold
// stays: who put them there has to let go.
func (d *draft) returnEntry(table, key string, ours func(claim) bool) error {
	if d.returned[table+" "+key] {
		return nil
	}
	value, err := d.stored.Get(d.ctx, table, key)
	if err != nil || value == nil {
		return err
	}
	var s claim
	if err := json.Unmarshal(value, &s); err != nil {
		return err
	}
	if len(s.Metadata.Finalizers) > 0 || !ours(s) {
		return nil
	}
	d.returned[table+" "+key] = true
	d.companions = append(d.companions, kinds.Companion{Table: table, Key: key})
	return nil
}

func (d *draft) ownerKey() string { return d.owner.Namespace + "/" + d.owner.Name }
