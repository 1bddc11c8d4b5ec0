package aggregate_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/server/aggregate"
)

// onlyNamed lists and watches one APIService.
type onlyNamed struct {
	services registration.APIServiceInterface
	name     string
}

func (o *onlyNamed) List(options metav1.ListOptions) (runtime.Object, error) {
	options.FieldSelector = "metadata.name=" + o.name
	return o.services.List(context.Background(), options)
}

func (o *onlyNamed) Watch(options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = "metadata.name=" + o.name
	return o.services.Watch(context.Background(), options)
}

func TestEveryGroupVersionHasARegistration(t *testing.T) {
	t.Parallel()
	list := kinds.Builtin(kinds.Deps{})
	registered := map[string]bool{"v1.apiregistration.k8s.io": true} // it is the one that needs none
	for _, s := range aggregate.Local(list) {
		registered[s.Name] = true
	}
	for _, r := range list.All() {
		for _, v := range r.Versions {
			if !registered[v+"."+r.Group] {
				t.Errorf("%s/%s is not registered", r.Group, v)
			}
		}
	}
}

func TestALaterStartRestoresOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	cfg := app.Config{Data: t.TempDir()}
	p := apptest.StartOn(t, cfg)
	ctx := t.Context()
	s := services(p.Config)
	own := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.own.example.com"},
		Spec:       apiregistrationv1.APIServiceSpec{Group: "own.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1},
	}
	stale := own.DeepCopy()
	stale.Name, stale.Spec.Group, stale.Labels = "v1.stale.example.com", "stale.example.com", map[string]string{aggregate.Managed: "onstart"}
	for _, o := range []*apiregistrationv1.APIService{own, stale} {
		if _, err := s.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Patch(ctx, "v1.apps", types.MergePatchType, []byte(`{"spec": {"versionPriority": 7}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, "v1.batch", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	versions := func(s registration.APIServiceInterface) map[string]string {
		list, err := s.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, o := range list.Items {
			all[o.Name] = o.ResourceVersion
		}
		return all
	}
	before := versions(s)
	p.Stop()

	s = services(apptest.StartOn(t, cfg).Config)
	after := versions(s)
	changed := map[string]bool{"v1.apps": true, "v1.batch": true, "v1.stale.example.com": true}
	for name := range changed {
		delete(before, name)
	}
	if after["v1.stale.example.com"] != "" {
		t.Error("a registration of nothing that is served is still there")
	}
	if after["v1.batch"] == "" {
		t.Error("a registration was not made again")
	}
	apps, err := s.Get(ctx, "v1.apps", metav1.GetOptions{})
	if err != nil || apps.Spec.VersionPriority != 15 {
		t.Errorf("a registration was not restored: %v, %v", apps, err)
	}
	for name := range changed {
		delete(after, name)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}
