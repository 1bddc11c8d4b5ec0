package rest

import (
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/store"
)

func (c *call) get() error {
	var options metav1.GetOptions
	if err := c.options(&options); err != nil {
		return err
	}
	sn, err := c.snapshot()
	if err != nil {
		return err
	}
	if err := notOlder(sn, options.ResourceVersion); err != nil {
		return err
	}
	o, err := c.find(sn)
	if err != nil {
		return err
	}
	return c.respond(http.StatusOK, o)
}

// find is the object that the request names, in a snapshot.
func (c *call) find(sn *store.Snapshot) (*store.Object, error) {
	o, err := sn.Get(c.ctx, c.resource.Table, c.key())
	if err == nil && o == nil {
		err = c.notFound()
	}
	return o, err
}

// load finds and decodes the object that the request names, as it is now.
func (c *call) load() (*store.Object, runtime.Object, error) {
	sn, err := c.snapshot()
	if err != nil {
		return nil, nil, err
	}
	have, err := c.find(sn)
	if err != nil {
		return nil, nil, err
	}
	obj, err := c.stored(have)
	return have, obj, err
}

// notOlder checks that the snapshot is at least as new as a client asks for.
func notOlder(sn *store.Snapshot, resourceVersion string) error {
	rev, err := parseRevision(resourceVersion)
	if err != nil {
		return err
	}
	if rev > sn.Rev() {
		return tooLarge(rev, sn.Rev())
	}
	return nil
}

// tooLarge says that a revision is asked for that does not exist yet.
func tooLarge(asked, current store.Revision) error {
	err := apierrors.NewTimeoutError("Too large resource version: "+strconv.FormatInt(int64(asked), 10)+", current: "+strconv.FormatInt(int64(current), 10), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

func parseRevision(text string) (store.Revision, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion: Invalid value: %q: %w", text, err)
	}
	return store.Revision(n), nil
}
