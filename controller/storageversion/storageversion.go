// Package storageversion rewrites what is stored in an older version.
//
// In come StorageVersionMigrations, each for a resource; out come writes that
// change nothing of its objects, after which they are stored in the version
// that is stored today, and for custom kinds a definition whose storedVersions
// name no other, so that older versions may be taken out of it.
//
// Of a resource one migration runs at a time, oldest first. What runs may be
// stopped at any moment and begins anew: an object rewritten since the migration
// was first seen is left alone.
package storageversion

import (
	"context"
	"fmt"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"

	"setpoint.dev/setpoint/controller/loop"
)

const (
	// Compat: who writes objects, and who writes definitions, as upstream.
	migrator = "storage-version-migrator-controller"
	runner   = "migration-runner-controller"
	workers  = 5
	// patience is how long a migration waits for its resource to be served.
	patience = time.Minute
	// page is how many objects are asked for at once.
	page = 500
)

type controller struct {
	actor *loop.Actor
	all   func() []*migrationv1.StorageVersionMigration
}

// New returns the controller.
func New(a *loop.Actor) loop.Runner {
	migrations := a.Informers.Storagemigration().V1beta1().StorageVersionMigrations()
	c := &controller{actor: a, all: func() []*migrationv1.StorageVersionMigration {
		all, _ := migrations.Lister().List(labels.Everything()) // a cache has no errors
		return all
	}}
	l := loop.New(a, migrator, workers, c.reconcile)
	loop.Watch(l, "storageversionmigrations.storagemigration.k8s.io", migrations.Informer(), func(before, after *migrationv1.StorageVersionMigration) []metav1.GroupResource {
		if after == nil {
			after = before
		}
		return []metav1.GroupResource{after.Spec.Resource}
	})
	return l
}

func (c *controller) reconcile(ctx context.Context, resource metav1.GroupResource) (time.Duration, error) {
	p := order(resource, c.all())
	for _, m := range p.end {
		if err := c.end(ctx, m.DeepCopy()); err != nil {
			return 0, err
		}
	}
	switch {
	case p.run != nil:
		return c.run(ctx, p.run.DeepCopy())
	case p.begin != nil:
		return 0, c.begin(ctx, p.begin.DeepCopy())
	}
	return 0, nil
}

// begin tells that a migration runs, the definition of a custom kind first.
func (c *controller) begin(ctx context.Context, m *migrationv1.StorageVersionMigration) error {
	definition, err := c.definition(ctx, m.Spec.Resource)
	if err != nil {
		return err
	}
	if definition != nil {
		if err := c.tell(ctx, definition, begun(m.Name)); err != nil {
			return err
		}
	}
	return c.condition(ctx, m, migrationv1.MigrationRunning, metav1.ConditionTrue, "MigrationRunning", "The migration is running")
}

// end tells that a migration is over.
func (c *controller) end(ctx context.Context, m *migrationv1.StorageVersionMigration) error {
	definition, err := c.definition(ctx, m.Spec.Resource)
	if err != nil {
		return err
	}
	if definition != nil {
		if err := c.tell(ctx, definition, ended(definition, is(m, migrationv1.MigrationSucceeded))); err != nil {
			return err
		}
	}
	return c.condition(ctx, m, migrationv1.MigrationRunning, metav1.ConditionFalse, "MigrationCompleted", "Migration completed")
}

// run migrates all objects that were there when the migration was first seen.
func (c *controller) run(ctx context.Context, m *migrationv1.StorageVersionMigration) (time.Duration, error) {
	resource, kind, err := c.served(m.Spec.Resource)
	if meta.IsNoMatchError(err) {
		if left := time.Until(m.CreationTimestamp.Add(patience)); left > 0 {
			return min(left, time.Second), nil
		}
		return 0, c.fail(ctx, m, "unable to obtain GVR from discovery")
	}
	if err != nil {
		return 0, err
	}
	objects, err := c.actor.API.Metadata()
	if err != nil {
		return 0, err
	}
	if m.Status.ResourceVersion == "" {
		first, err := objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return 0, err
		}
		m.Status.ResourceVersion = first.ResourceVersion
		return 0, c.update(ctx, m)
	}
	err = c.rewrite(ctx, objects, resource, kind, m.Status.ResourceVersion)
	if err != nil && (ctx.Err() != nil || passes(err)) {
		return 0, err
	}
	if err != nil {
		return 0, c.fail(ctx, m, err.Error())
	}
	return 0, c.condition(ctx, m, migrationv1.MigrationSucceeded, metav1.ConditionTrue, "StorageVersionMigrationSucceeded", "")
}

// rewrite writes every object as it is that is no younger than a revision.
func (c *controller) rewrite(ctx context.Context, objects metadata.Interface, resource schema.GroupVersionResource, kind schema.GroupVersionKind, until string) error {
	writes, err := c.actor.API.Dynamic()
	if err != nil {
		return err
	}
	for next := ""; ; {
		some, err := objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: page, Continue: next})
		if err != nil {
			return err
		}
		for i := range some.Items {
			if o := &some.Items[i]; younger(o.ResourceVersion, until) {
				continue
			} else if err := touch(ctx, writes.Resource(resource).Namespace(o.Namespace), kind, o); err != nil {
				return err
			}
		}
		if next = some.Continue; next == "" {
			return nil
		}
	}
}

// touch applies nothing to an object. An object that is another by now, or no
// more, needs no migration: with its UID and revision given the server says so.
func touch(ctx context.Context, writes dynamic.ResourceInterface, kind schema.GroupVersionKind, o *metav1.PartialObjectMetadata) error {
	body := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"uid":%q,"resourceVersion":%q}}`, kind.GroupVersion(), kind.Kind, o.UID, o.ResourceVersion)
	_, err := writes.Patch(ctx, o.Name, "application/apply-patch+yaml", body, metav1.PatchOptions{FieldManager: migrator})
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// served is how a resource is served: as of now, for it may have come, or have
// lost a version, just before its migration.
func (c *controller) served(of metav1.GroupResource) (resource schema.GroupVersionResource, kind schema.GroupVersionKind, err error) {
	d, err := c.actor.API.Discovery()
	if err != nil {
		return resource, kind, err
	}
	groups, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		return resource, kind, err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	resource, err = mapper.ResourceFor(schema.GroupVersionResource{Group: of.Group, Resource: of.Resource})
	if err != nil {
		return resource, kind, err
	}
	kind, err = mapper.KindFor(resource)
	return resource, kind, err
}

// passes says whether an error is of those that are gone when one tries again.
func passes(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsResourceExpired(err) || apierrors.ReasonForError(err) == metav1.StatusReasonUnknown
}

func (c *controller) fail(ctx context.Context, m *migrationv1.StorageVersionMigration, why string) error {
	return c.condition(ctx, m, migrationv1.MigrationFailed, metav1.ConditionTrue, "StorageVersionMigrationFailed", "migration encountered unhandled error: "+why)
}

func (c *controller) condition(ctx context.Context, m *migrationv1.StorageVersionMigration, kind migrationv1.MigrationConditionType, status metav1.ConditionStatus, reason, message string) error {
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: string(kind), Status: status, Reason: reason, Message: message})
	return c.update(ctx, m)
}

func (c *controller) update(ctx context.Context, m *migrationv1.StorageVersionMigration) error {
	_, err := c.actor.Client.StoragemigrationV1beta1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{})
	return err
}
