package crds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubectl/pkg/cmd/explain"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"setpoint.dev/setpoint/app/apptest"
)

// atLeast is how many definitions have to be served, so that a change of the
// modules or of how they are read does not pass for a success.
const atLeast = 150

// refused are definitions that kube-apiserver refuses too, and why.
var refused = map[string]string{"testcrs.example.com": "default: Too long: may not be more than 10 bytes"}

func TestDefinitionsOfOthersAreServed(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of definitions take a while; left out of short runs")
	}
	dirs, err := folders(t.Context(), t.TempDir())
	if err != nil {
		t.Skipf("modules are missing, `make deps` fetches them: %v", err)
	}
	f, err := find(dirs)
	if err != nil {
		t.Fatal(err)
	}
	plane := apptest.Start(t)
	plane.Config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	j := &judge{client: client, found: f}
	var installed []*apiextensions.CustomResourceDefinition
	var unserved []string
	for _, name := range slices.Sorted(maps.Keys(f.definitions)) {
		crd, err := j.install(t.Context(), f.definitions[name])
		if why, expected := refused[name]; expected {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v, want it refused with %q", name, err, why)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if served(crd) == nil {
			unserved = append(unserved, name)
			continue
		}
		installed = append(installed, crd)
	}
	generated, taken := 0, 0
	var none []string
	for _, crd := range installed {
		from, err := j.serve(t.Context(), crd)
		switch {
		case err != nil:
			t.Errorf("%s: %v", crd.Name, err)
		case from == byRule:
			generated++
		case from == fromModule:
			taken++
		default:
			none = append(none, crd.Name)
		}
	}
	explained := explainAll(t, plane, installed)
	t.Logf("%d modules, %d definitions: %d installed, %d refused as kube-apiserver does, %d that ask to be served in no version %v",
		len(dirs), len(f.definitions), len(installed)+len(unserved), len(refused), len(unserved), unserved)
	t.Logf("served with an object: %d (%d made from the schema, %d that the modules ship); explained: %d", generated+taken, generated, taken, explained)
	t.Logf("served, but no object was found that its rules allow: %d %v", len(none), none)
	if served := generated + taken; served < atLeast || explained < atLeast {
		t.Errorf("%d are served with an object and %d explained, want at least %d", served, explained, atLeast)
	}
}

// judge asks a server.
type judge struct {
	client dynamic.Interface
	found  *found
}

var definitions = schema.GroupVersionResource{Group: apiextensions.GroupName, Version: "v1", Resource: "customresourcedefinitions"}

// install creates a definition in the version that it is written in, and
// returns it as v1. Webhooks that convert are not there, and are left out.
func (j *judge) install(ctx context.Context, u *unstructured.Unstructured) (*apiextensions.CustomResourceDefinition, error) {
	u = u.DeepCopy()
	unstructured.RemoveNestedField(u.Object, "spec", "conversion")
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	in := definitions
	in.Version = u.GroupVersionKind().Version
	if _, err := j.client.Resource(in).Create(ctx, u, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	got, err := j.client.Resource(definitions).Get(ctx, u.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	crd, err := typed(got)
	if err != nil {
		return nil, err
	}
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensions.Established && c.Status == apiextensions.ConditionTrue {
			return crd, nil
		}
	}
	return nil, fmt.Errorf("not established: %v", crd.Status.Conditions)
}

// origin is where an object comes from.
type origin int

const (
	nowhere origin = iota
	byRule
	fromModule
)

// serve creates an object, reads it back in all versions and lists it. With no
// object that the schema allows, the list is asked for alone.
func (j *judge) serve(ctx context.Context, crd *apiextensions.CustomResourceDefinition) (from origin, err error) {
	version := served(crd)
	in := func(v string) dynamic.ResourceInterface {
		r := j.client.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: v, Resource: crd.Spec.Names.Plural})
		if crd.Spec.Scope == apiextensions.NamespaceScoped {
			return r.Namespace("default")
		}
		return r
	}
	obj, from, err := j.create(ctx, crd, version, in)
	if err != nil {
		return from, err
	}
	want := 0
	if obj != nil {
		want = 1
	}
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		list, err := in(v.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return from, fmt.Errorf("list in %s: %w", v.Name, err)
		}
		if len(list.Items) != want || list.GetKind() != crd.Spec.Names.ListKind {
			return from, fmt.Errorf("list in %s: %d of %s", v.Name, len(list.Items), list.GetKind())
		}
		if obj == nil {
			continue
		}
		got, err := in(v.Name).Get(ctx, obj.GetName(), metav1.GetOptions{})
		if err != nil {
			return from, fmt.Errorf("get in %s: %w", v.Name, err)
		}
		if v.Name == obj.GroupVersionKind().Version && !same(got, obj) {
			return from, fmt.Errorf("what is read is not what was created:\n%v\n%v", got, obj)
		}
	}
	return from, nil
}

// served is the version that is stored when it is served, or else the first;
// nil when there is none.
func served(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinitionVersion {
	var first *apiextensions.CustomResourceDefinitionVersion
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Served && v.Storage {
			return v
		}
		if v.Served && first == nil {
			first = v
		}
	}
	return first
}

// create tries objects until one is taken. Those that are not have to be
// refused with a reason.
func (j *judge) create(ctx context.Context, crd *apiextensions.CustomResourceDefinition, version *apiextensions.CustomResourceDefinitionVersion, in func(string) dynamic.ResourceInterface) (*unstructured.Unstructured, origin, error) {
	type try struct {
		obj  *unstructured.Unstructured
		from origin
	}
	var tries []try
	for _, content := range examples(version) {
		u := &unstructured.Unstructured{Object: content}
		u.SetAPIVersion(crd.Spec.Group + "/" + version.Name)
		tries = append(tries, try{u, byRule})
	}
	var shipped []try
	for _, u := range j.found.examples[schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}] {
		if slices.ContainsFunc(crd.Spec.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool {
			return v.Served && v.Name == u.GroupVersionKind().Version
		}) {
			shipped = append(shipped, try{u.DeepCopy(), fromModule})
		}
	}
	tries = slices.Insert(tries, min(len(tries), 1+maxAlternatives), shipped...)
	for _, t := range tries {
		t.obj.SetKind(crd.Spec.Names.Kind)
		unstructured.RemoveNestedField(t.obj.Object, "metadata")
		for _, name := range []string{"example", "default", "cluster"} { // kinds of one object want it named
			t.obj.SetName(name)
			created, err := in(t.obj.GroupVersionKind().Version).Create(ctx, t.obj, metav1.CreateOptions{})
			if err == nil {
				return created, t.from, nil
			}
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				return nil, nowhere, fmt.Errorf("create: %w", err)
			}
			if !strings.Contains(err.Error(), "metadata.name") && !strings.Contains(err.Error(), "name must be") {
				break
			}
		}
	}
	return nil, nowhere, nil
}

func same(a, b *unstructured.Unstructured) bool {
	x, errX := json.Marshal(a.Object)
	y, errY := json.Marshal(b.Object)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// getter keeps what it learns about a server in memory, for all commands.
type getter struct {
	*genericclioptions.ConfigFlags
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.RESTMapper
}

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.discovery, nil
}

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (g *getter) ToRESTMapper() (meta.RESTMapper, error) { return g.mapper, nil }

// explainAll lets kubectl explain every version of every kind, and its spec.
func explainAll(t *testing.T, plane *apptest.Plane, crds []*apiextensions.CustomResourceDefinition) (explained int) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	cached := memory.NewMemCacheClient(client)
	factory := cmdutil.NewFactory(&getter{genericclioptions.NewConfigFlags(true), cached, restmapper.NewDeferredDiscoveryRESTMapper(cached)})
	for _, crd := range crds {
		good := true
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			out, err := explainOne(factory, crd.Spec.Names.Plural, crd.Spec.Group+"/"+v.Name)
			if err != nil || !strings.Contains(out, crd.Spec.Names.Kind) || !strings.Contains(out, "FIELDS:") {
				t.Errorf("kubectl explain %s in %s: %v\n%s", crd.Name, v.Name, err, out)
				good = false
				continue
			}
			s := v.Schema
			if s == nil || s.OpenAPIV3Schema == nil || len(s.OpenAPIV3Schema.Properties["spec"].Properties) == 0 {
				continue
			}
			out, err = explainOne(factory, crd.Spec.Names.Plural+".spec", crd.Spec.Group+"/"+v.Name)
			if err != nil || !strings.Contains(out, "FIELD: spec") {
				t.Errorf("kubectl explain %s.spec in %s: %v\n%s", crd.Name, v.Name, err, out)
				good = false
			}
		}
		if good {
			explained++
		}
	}
	return explained
}

func explainOne(factory cmdutil.Factory, what, version string) (string, error) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	flags := explain.NewExplainFlags(streams)
	flags.APIVersion = version
	o, err := flags.ToOptions(factory, "kubectl", []string{what})
	if err != nil {
		return "", err
	}
	if err := o.Validate(); err != nil {
		return "", err
	}
	err = o.Run()
	return out.String(), err
}
