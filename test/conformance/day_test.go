package conformance

const nginxFive = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: nginx}
spec:
  replicas: 5
  selector: {matchLabels: {app: nginx}}
  template:
    metadata: {labels: {app: nginx}}
    spec: {containers: [{name: nginx, image: "nginx:1.7.9"}]}
`

const settings = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: red, size: big}
`

const settingsBlue = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue}
`

const settingsSize = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {size: huge}
`

const twoPods = `
apiVersion: v1
kind: Pod
metadata: {name: b, labels: {app: pair}}
spec: {containers: [{name: c, image: "i:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: pair}}
spec: {nodeName: n1, containers: [{name: c, image: "i:2"}]}
`

// day is what a person does with kubectl, in order; the first part is story 1.
var day = []struct {
	name  string
	steps []step
}{
	{"imperative", []step{
		{run: "create -f testdata/nginx.yaml", want: []string{"deployment.apps/nginx created"}},
		{run: "create -f testdata/nginx.yaml", err: `Error from server (AlreadyExists): error when creating "testdata/nginx.yaml": deployments.apps "nginx" already exists`},
		{run: "replace -f -", stdin: nginxFive, want: []string{"deployment.apps/nginx replaced"}},
		{run: "get deployment nginx -o jsonpath={.spec.replicas},{.spec.template.spec.containers[0].image},{.metadata.generation}", want: []string{"5,nginx:1.7.9,2"}},
		{run: "scale deployment nginx --replicas=4", want: []string{"deployment.apps/nginx scaled"}},
		{run: "scale deployment nginx --current-replicas=9 --replicas=1", err: "Expected replicas to be 9, was 4"},
		{run: "delete -f testdata/nginx.yaml", want: []string{`deployment.apps "nginx" deleted`}},
	}},
	{"declarative", []step{
		{run: "apply -f testdata/nginx.yaml", want: []string{"deployment.apps/nginx created"}},
		{run: "apply -f testdata/nginx.yaml", want: []string{"deployment.apps/nginx unchanged"}},
		{run: "apply -f -", stdin: nginxFive, want: []string{"deployment.apps/nginx configured"}},
		{run: "edit deployment nginx", env: []string{"KUBE_EDITOR=sed -i s/nginx:1.7.9/nginx:1.8/"}, want: []string{"deployment.apps/nginx edited"}},
		{run: "edit deployment nginx", env: []string{"KUBE_EDITOR=true"}, err: "Edit cancelled, no changes made.", code: -1},
		{run: "set image deployment/nginx nginx=nginx:1.9", want: []string{"deployment.apps/nginx image updated"}},
		{run: "get deployment nginx -o jsonpath={.spec.replicas},{.spec.template.spec.containers[0].image}", want: []string{"5,nginx:1.9"}},
		{run: "diff -f -", stdin: nginxFive, code: 1, want: []string{"-      - image: nginx:1.9", "+      - image: nginx:1.7.9"}},
		{run: "rollout history deployment/nginx", want: []string{"deployment.apps/nginx"}},
		{run: "rollout status deployment/nginx --timeout=1s", err: "timed out waiting for the condition", want: []string{"Waiting for deployment spec update to be observed..."}},
		{run: "rollout pause deployment/nginx", want: []string{"deployment.apps/nginx paused"}},
		{run: "rollout resume deployment/nginx", want: []string{"deployment.apps/nginx resumed"}},
		{run: "rollout restart deployment/nginx", want: []string{"deployment.apps/nginx restarted"}},
		{run: "autoscale deployment nginx --min=2 --max=5", want: []string{"horizontalpodautoscaler.autoscaling/nginx autoscaled"}},
		{run: "expose deployment nginx --port=80", want: []string{"service/nginx exposed"}},
		{run: "set env deployment/nginx MODE=fast", want: []string{"deployment.apps/nginx env updated"}},
		{run: "set resources deployment nginx --limits=cpu=200m", want: []string{"deployment.apps/nginx resource requirements updated"}},
	}},
	{"several writers", []step{
		{run: "apply --server-side --field-manager=ann -f -", stdin: settings, want: []string{"configmap/settings serverside-applied"}},
		{run: "apply --server-side --field-manager=bob -f -", stdin: settingsBlue, err: `Apply failed with 1 conflict: conflict with "ann": .data.colour`},
		{run: "apply --server-side --field-manager=bob --force-conflicts -f -", stdin: settingsBlue, want: []string{"serverside-applied"}},
		{run: "apply --server-side --field-manager=ann -f -", stdin: settingsSize, want: []string{"serverside-applied"}},
		{run: "get configmap settings -o jsonpath={.data}", want: []string{`{"colour":"blue","size":"huge"}`}},
		{run: "get configmap settings --show-managed-fields -o jsonpath={.metadata.managedFields[*].manager}", want: []string{"ann", "bob"}},
		{run: "apply --dry-run=server -f -", stdin: settings, want: []string{"configmap/settings configured (server dry run)"}, err: "missing the kubectl.kubernetes.io/last-applied-configuration annotation", code: -1},
	}},
	{"small changes", []step{
		{run: "label configmap settings tier=one", want: []string{"configmap/settings labeled"}},
		{run: "label configmap settings tier=two", err: "'tier' already has a value (one), and --overwrite is false"},
		{run: "label configmap settings tier=two --overwrite", want: []string{"labeled"}},
		{run: "label configmap settings tier-", want: []string{"unlabeled"}},
		{run: "annotate configmap settings why=because", want: []string{"configmap/settings annotated"}},
		{run: `patch configmap settings --type=merge -p '{"data":{"a":"1"}}'`, want: []string{"configmap/settings patched"}},
		{run: `patch configmap settings --type=merge -p '{"data":{"a":"1"}}'`, want: []string{"patched (no change)"}},
		{run: `patch configmap settings --type=json -p '[{"op":"replace","path":"/data/a","value":"2"}]'`, want: []string{"patched"}},
		{run: `patch deployment nginx -p '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"s"}]}}}}'`, want: []string{"patched"}},
		{run: "get deployment nginx -o jsonpath={.spec.template.spec.containers[*].name}", want: []string{"side nginx"}},
		{run: `patch deployment nginx --subresource=status --type=merge -p '{"status":{"replicas":3}}'`, want: []string{"patched"}},
		{run: "get deployment nginx --subresource=status -o jsonpath={.status.replicas}", want: []string{"3"}},
		{run: "create -f -", stdin: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: typo}\ndat: {}\n", err: `strict decoding error: unknown field "dat"`},
	}},
	{"looking", []step{
		{run: "create -f -", stdin: twoPods, want: []string{"pod/b created", "pod/a created"}},
		{run: "get pods", want: []string{"NAME   READY   STATUS    RESTARTS   AGE", "a      0/1     Pending"}},
		{run: "get pods -o wide", want: []string{"NOMINATED NODE", "n1"}},
		{run: "get pods -l app=pair -o name", want: []string{"pod/a\npod/b\n"}},
		{run: "get pods --field-selector spec.nodeName=n1 -o name", want: []string{"pod/a\n"}, not: []string{"pod/b"}},
		{run: "get pods -o custom-columns=N:.metadata.name,I:.spec.containers[0].image --sort-by=.spec.containers[0].image", want: []string{"N     I\nb     i:1\na     i:2\n"}},
		{run: "get pods --sort-by=.spec.containers[0].image --no-headers -o custom-columns=:.metadata.name", want: []string{"b\na\n"}},
		{run: "get pod a -o yaml", want: []string{"apiVersion: v1\nkind: Pod\n", "qosClass: BestEffort"}},
		{run: "get pods --show-labels", want: []string{"app=pair"}},
		{run: "get all", want: []string{"pod/a", "service/kubernetes", "deployment.apps/nginx", "horizontalpodautoscaler.autoscaling/nginx"}},
		{run: "get pods --chunk-size=1 -A -o name", want: []string{"pod/a\npod/b\n"}},
		{run: "get pods -n nowhere", err: "No resources found in nowhere namespace.", code: -1},
		{run: "get pod zzz", err: `Error from server (NotFound): pods "zzz" not found`},
		{run: "get widgets", err: `error: the server doesn't have a resource type "widgets"`},
		{run: "describe pod a", want: []string{"Name:         a", "Node:         n1"}},
		{run: "describe deployment nginx", want: []string{"nginx:1.9"}},
		{run: "get --raw /api/v1/namespaces/default", want: []string{`"kind":"Namespace"`}},
		{run: "wait --for=jsonpath={.status.phase}=Pending pod/a --timeout=110s", want: []string{"pod/a condition met"}},
		{run: "wait --for=condition=Ready pod/a --timeout=1s", err: "timed out waiting for the condition on pods/a"},
		{run: "explain deployment.spec.replicas", want: []string{"FIELD: replicas <integer>", "Number of desired pods"}},
		{run: "explain pods --recursive", want: []string{"nodeName"}},
	}},
	{"the server itself", []step{
		{run: "api-resources", want: []string{"deployments", "apps/v1", "ConfigMap"}},
		{run: "api-resources --api-group=batch --verbs=list -o name", want: []string{"cronjobs.batch", "jobs.batch"}},
		{run: "api-versions", want: []string{"apps/v1\n", "v1\n"}},
		{run: "version", want: []string{"Server Version: v1.36"}},
		{run: "get componentstatuses", want: []string{"NAME                 STATUS      MESSAGE", "etcd-0               Healthy     ok", "scheduler            Unhealthy"}, err: "v1 ComponentStatus is deprecated in v1.19+", code: -1},
		{run: "cluster-info", want: []string{"Kubernetes control plane"}},
		{run: "config view", want: []string{"certificate-authority-data: DATA+OMITTED"}},
		{run: "config current-context", want: []string{"setpoint"}},
		{run: "auth can-i delete pods", want: []string{"yes"}},
		{run: "auth can-i --list", want: []string{"*.*"}},
		{run: "auth can-i delete pods --as=nobody", want: []string{"no"}, code: 1},
		{run: "auth whoami", want: []string{"system:masters"}},
		{run: "create serviceaccount robot", want: []string{"serviceaccount/robot created"}},
		{run: "create token robot", want: []string{"."}},
		{run: "create role reader --verb=get --resource=pods", want: []string{"role.rbac.authorization.k8s.io/reader created"}},
		{run: "create rolebinding reader --role=reader --serviceaccount=default:robot", want: []string{"created"}},
		{run: "auth can-i get pods --as=system:serviceaccount:default:robot", want: []string{"yes"}},
		{run: "get configmaps --as=system:serviceaccount:default:robot", err: `Error from server (Forbidden): configmaps is forbidden: User "system:serviceaccount:default:robot" cannot list resource "configmaps" in API group "" in the namespace "default"`},
		{run: "top pods", err: "error: Metrics API not available"},
		{run: "exec b -- date", err: "does not have a host assigned"},
	}},
	{"deleting", []step{
		{run: "create configmap one --from-literal=a=b", want: []string{"configmap/one created"}},
		{run: "create configmap two --from-literal=a=b", want: []string{"configmap/two created"}},
		{run: "delete configmap one --cascade=background", want: []string{`configmap "one" deleted`}},
		{run: "delete configmap two --dry-run=server", want: []string{"deleted", "(server dry run)"}},
		{run: "delete configmap two --cascade=orphan --wait=false", want: []string{"deleted"}},
		{run: `patch configmap two --type=merge -p '{"metadata":{"finalizers":null}}'`, want: []string{"patched"}},
		{run: "create configmap three", want: []string{"created"}},
		{run: "delete configmap three --cascade=foreground --wait=false", want: []string{"deleted"}},
		{run: `patch configmap three --type=merge -p '{"metadata":{"finalizers":null}}'`, want: []string{"patched"}},
		{run: "delete configmap one --ignore-not-found"},
		{run: "delete configmap one", err: `Error from server (NotFound): configmaps "one" not found`},
		{run: "delete pod b --now", want: []string{`pod "b" deleted`}},
		{run: "delete pod a --grace-period=0 --force", want: []string{"force deleted"}, err: "Immediate deletion does not wait", code: -1},
		{run: "get pods", err: "No resources found in default namespace.", code: -1},
	}},
}
