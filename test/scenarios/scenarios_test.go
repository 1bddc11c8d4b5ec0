// Package scenarios tells how the HTTP API behaves in stories: each file in
// testdata is a transcript of requests and of what came back. Every story is
// told three times, with JSON, protobuf and CBOR on the wire, and must end the
// same.
//
// The judge of a story is Kubernetes: -kubeconfig tells them all to another
// API server, which should agree.
package scenarios

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

var (
	rewrite    = flag.Bool("rewrite", false, "record new endings")
	kubeconfig = flag.String("kubeconfig", "", "tell the stories to this API server instead")
)

// define teaches the server the kinds in testdata.
func define(t *testing.T, config *rest.Config) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // one of our own
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &u.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := definitions.Apply(t.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "scenarios"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no stories: %v", err)
	}
	config := target(t)
	define(t, config)
	known, err := discover(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		title := strings.TrimSuffix(filepath.Base(file), ".txt")
		for _, f := range formats {
			t.Run(title+"/"+f.name, func(t *testing.T) { play(t, config, known, file, f, title) })
		}
	}
}

// TestPlugins tells what admission plugins do: each in a story of its name, to a
// server that runs it, with the configuration beside the story, if there is one.
func TestPlugins(t *testing.T) {
	if *kubeconfig != "" {
		t.Skip("another API server cannot be told which plugins to run")
	}
	files, err := filepath.Glob("testdata/plugins/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no stories: %v", err)
	}
	for _, file := range files {
		plugin := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(plugin, func(t *testing.T) {
			cfg := app.Config{Data: app.Memory, Admission: admission.Options{Enable: []string{plugin}}}
			if configuration := strings.TrimSuffix(file, ".txt") + ".yaml"; exists(configuration) {
				cfg.Admission.File = configuration
			}
			config := apptest.StartOn(t, cfg).Config
			known, err := discover(config)
			if err != nil {
				t.Fatal(err)
			}
			play(t, config, known, file, formats[0], strings.ToLower(plugin))
		})
	}
}

// untold are plugins without a story, and why.
var untold = map[string]string{
	"AlwaysDeny": "a story begins with a namespace", "ImagePolicyWebhook": "it asks a server of somebody else's",
	"MutatingAdmissionPolicy": "admission/policy", "ValidatingAdmissionPolicy": "admission/policy",
	"MutatingAdmissionWebhook": "admission/webhook", "ValidatingAdmissionWebhook": "admission/webhook", "Initializers": "test/initializers",
	"ClusterTrustBundleAttest": "its kind is not served", "NodeDeclaredFeatureValidator": "nodes declare what nothing needs yet",
}

func TestEveryPluginHasAStory(t *testing.T) {
	for _, plugin := range slices.Concat(admission.Names()) {
		if untold[plugin] == "" && !exists("testdata/plugins/"+plugin+".txt") {
			t.Errorf("%s has no story", plugin)
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// play tells the story in a file, in one format, and compares how it ends.
func play(t *testing.T, config *rest.Config, known map[string]served, file string, f format, title string) {
	t.Helper()
	text, err := os.ReadFile(file) //nolint:gosec // one of our own
	if err != nil {
		t.Fatal(err)
	}
	s := parse(string(text))
	if s.only != nil && !slices.Contains(s.only, f.name) {
		t.Skipf("this story is only for %v", s.only)
	}
	teller, err := newTeller(t, config, known, f, title)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.acts {
		s.acts[i].ending = teller.tell(&s.acts[i])
	}
	got := s.String()
	if *rewrite && f.name == "json" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // it is source
			t.Fatal(err)
		}
		text = []byte(got)
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s ends otherwise (-want +got):\n%s", file, diff)
	}
}

func target(t *testing.T) *rest.Config {
	t.Helper()
	if *kubeconfig == "" {
		return apptest.Start(t).Config
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return config
}
