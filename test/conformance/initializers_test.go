package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"setpoint.dev/setpoint/app/apptest"
)

// story is where the manifests of the sidecars' story are, as people wrote them
// for Kubernetes 1.9 to 1.13.
const story = "../initializers/testdata/"

// waits is a manifest that brings its own list of what it waits for.
const waits = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: waits
  initializers:
    pending: [{name: a.example.org}]
data: {a: b}
`

// exempt is one that says that it waits for nobody, as initializers' own
// manifests did.
const exempt = `
apiVersion: v1
kind: Pod
metadata:
  name: exempt
  initializers: {pending: []}
spec: {containers: [{name: app, image: "app:1"}]}
`

// misspelt has a field in the list that there is not.
const misspelt = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: misspelt
  initializers: {pending: [{nam: a.example.org}]}
`

// kubectl knows nothing of initializers since 1.16: what it is told of them it
// takes from the server's documents, and what waits it asks for by path.
func TestKubectlAndInitializers(t *testing.T) {
	injector := filepath.Join(t.TempDir(), "sidecar-injector")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", injector, "../../examples/sidecar-injector").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	judge(t, func(t *testing.T, command []string) {
		plane := apptest.StartWith(t, "serviceaccount", "root-ca-cert-publisher")
		k := &kubectl{command, plane.Kubeconfig, t.TempDir()}
		k.day(t, []step{
			{run: "apply -f " + story + "envoy-initializer-configmap.yaml", want: []string{"configmap/envoy-initializer created"}},
			{run: "apply -f " + story + "envoy-initializer-pod.yaml", want: []string{"pod/envoy-initializer created"}},
			{run: "apply -f " + story + "envoy-config.yaml", want: []string{"initializerconfiguration.admissionregistration.k8s.io/envoy-config created"}},
			{run: "explain initializerconfiguration.initializers", want: []string{"failurePolicy", "timeoutSeconds"}},
			{run: "explain pod.metadata.initializers", want: []string{"pending"}},
		})
		runInjector(t, injector, plane.Kubeconfig)
		k.day(t, []step{
			{run: "apply -f " + story + "myapp-pod.yaml", want: []string{"pod/myapp-pod created"}},
			{run: "get pod myapp-pod -o jsonpath={.spec.containers[*].name}", want: []string{"myapp-container envoy"}},
			{run: "get pod myapp-pod -o jsonpath={.spec.containers[0].command}", want: []string{`["sh","-c","echo Hello Kubernetes! \u0026\u0026 sleep 3600"]`}},
			// kubectl sends the order of the containers that it knows; nothing comes of it.
			{run: "apply -f " + story + "myapp-pod.yaml", want: []string{"pod/myapp-pod "}},
			{run: "get pod myapp-pod -o jsonpath={.spec.containers[*].name}", want: []string{"myapp-container envoy"}},
			{run: "create -f " + story + "myapp-pod-annotated.yaml", want: []string{"created"}},
			{run: "apply -f -", stdin: exempt, want: []string{"pod/exempt created"}},
			{run: "get pod exempt -o jsonpath={.spec.containers[*].name}{.metadata.initializers}", want: []string{"app"}, not: []string{"envoy", "pending"}},
			{run: "apply -f -", stdin: exempt, want: []string{"pod/exempt "}},
			{run: "create -f -", stdin: misspelt, err: `unknown field "metadata.initializers.pending[0].nam"`},
			{run: "create --request-timeout=2s -f -", stdin: waits, err: "imeout"},
			{run: "get configmaps -o name", not: []string{"configmap/waits"}},
			{run: "get --raw /api/v1/namespaces/default/configmaps?includeUninitialized=true", want: []string{`"initializers":{"pending":[{"name":"a.example.org"}]}`}},
			{run: "create -f -", stdin: waits, err: "object is being initialized (waiting for a.example.org)"},
			{run: "apply --server-side --dry-run=server -f -", stdin: exempt, want: []string{"exempt"}},
			{run: `patch configmap waits --type=merge -p {"metadata":{"initializers":null}}`, want: []string{"configmap/waits patched"}},
			{run: "get configmaps -o name", want: []string{"configmap/waits"}},
			{run: "delete initializerconfiguration envoy-config", want: []string{"deleted"}},
		})
	})
}

// runInjector runs the sidecar injector until the test ends.
func runInjector(t *testing.T, program, kubeconfig string) {
	t.Helper()
	c := exec.Command(program, "-kubeconfig", kubeconfig)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("%s: %v", program, err)
		}
	})
}
