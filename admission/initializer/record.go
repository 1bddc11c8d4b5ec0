package initializer

import (
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Record is what the server remembers of an object that waits, beside the
// object: clients that read and write the whole object would lose it. It is
// written and removed in the commits that write and remove the object, and is
// found by the object's UID.
type Record struct {
	UID types.UID `json:"uid"`
	// Resource is what the object was created as.
	Resource  schema.GroupVersionResource `json:"resource"`
	Namespace string                      `json:"namespace,omitempty"`
	Name      string                      `json:"name"`
	Created   time.Time                   `json:"created"`
	// Creator made the object; what becomes of it is checked as if they had
	// asked for that.
	Creator authenticationv1.UserInfo `json:"creator"`
	// Pending are the names that the object waits for, the next one first.
	Pending []string `json:"pending"`
	// HeadSince is when the first of them became the first.
	HeadSince time.Time `json:"headSince"`
	// Assigned are the names that configurations gave the object. Others are
	// the creator's own, or were added by an initializer.
	Assigned []string `json:"assigned,omitempty"`
	// Account is whom a pod runs as, "namespace/name".
	Account string `json:"account,omitempty"`
	// Changed says that the object is not what its creator asked for any more.
	Changed bool `json:"changed,omitempty"`
	// Failed says that the object has a result, and goes.
	Failed bool `json:"failed,omitempty"`
}

// Head is the name that the object waits for now; empty when it is none.
func (r *Record) Head() string {
	if len(r.Pending) == 0 {
		return ""
	}
	return r.Pending[0]
}

// Wait says that the object waits for other names from now on.
func (r *Record) Wait(pending []string, now time.Time) {
	before := r.Head()
	r.Pending = slices.Clone(pending)
	if r.Head() != before {
		r.HeadSince = now
	}
}

// SetCreator remembers who made the object.
func (r *Record) SetCreator(who user.Info) {
	if who == nil {
		return
	}
	r.Creator = authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: slices.Clone(who.GetGroups())}
	for key, values := range who.GetExtra() {
		if r.Creator.Extra == nil {
			r.Creator.Extra = map[string]authenticationv1.ExtraValue{}
		}
		r.Creator.Extra[key] = slices.Clone(values)
	}
}

// User is the creator as admission knows users.
func (r *Record) User() user.Info {
	u := &user.DefaultInfo{Name: r.Creator.Username, UID: r.Creator.UID, Groups: r.Creator.Groups}
	for key, values := range r.Creator.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[key] = values
	}
	return u
}
