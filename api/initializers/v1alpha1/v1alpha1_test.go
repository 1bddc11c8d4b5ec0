package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

// full has every field.
func full() *v1alpha1.InitializerConfiguration {
	return &v1alpha1.InitializerConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "envoy", Generation: 2, Labels: map[string]string{"a": "b"}},
		Initializers: []v1alpha1.Initializer{
			{
				Name: "envoy.initializer.kubernetes.io",
				Rules: []v1alpha1.Rule{
					{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"deployments"}, Scope: new(admissionv1.NamespacedScope)},
				},
				FailurePolicy: new(v1alpha1.Ignore), TimeoutSeconds: new(int32(30)),
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
				ObjectSelector:    &metav1.LabelSelector{},
				MatchConditions:   []admissionv1.MatchCondition{{Name: "opted", Expression: "true"}},
				MatchPolicy:       new(admissionv1.Equivalent),
				Controller: &v1alpha1.Controller{
					ServiceAccount: &v1alpha1.Reference{Namespace: "default", Name: "envoy"},
					Lease:          &v1alpha1.Reference{Namespace: "default", Name: "alive"},
				},
			},
			{Name: "bare.example.org"},
		},
		Status: v1alpha1.InitializerConfigurationStatus{Initializers: []v1alpha1.InitializerStatus{{
			Name: "envoy.initializer.kubernetes.io", ObservedGeneration: 2, Pending: 3, OldestPendingSeconds: 40,
			LastCompletionTime: new(metav1.NewTime(time.Unix(1e9, 0))),
			Conditions:         []metav1.Condition{{Type: v1alpha1.Ready, Status: metav1.ConditionTrue, Reason: "Completing", LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0))}},
		}}},
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	list := &v1alpha1.InitializerConfigurationList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind + "List"},
		ListMeta: metav1.ListMeta{ResourceVersion: "7"},
		Items:    []v1alpha1.InitializerConfiguration{*full(), {ObjectMeta: metav1.ObjectMeta{Name: "second"}}},
	}
	for i := range list.Items {
		list.Items[i].TypeMeta = metav1.TypeMeta{} // protobuf has it in the envelope alone
	}
	codec := protobuf.NewSerializer(scheme, scheme)
	for name, obj := range map[string]runtime.Object{"object": full(), "list": list} {
		t.Run("protobuf of "+name, func(t *testing.T) {
			var b bytes.Buffer
			if err := codec.Encode(obj, &b); err != nil {
				t.Fatal(err)
			}
			got, _, err := codec.Decode(b.Bytes(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(obj, got); diff != "" {
				t.Errorf("want, got:\n%s", diff)
			}
		})
		t.Run("JSON of "+name, func(t *testing.T) {
			b, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			got, err := scheme.New(obj.GetObjectKind().GroupVersionKind())
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(obj, got); diff != "" {
				t.Errorf("want, got:\n%s", diff)
			}
		})
	}
}

// TestBytesOfOld reads what a client of Kubernetes 1.9 writes.
func TestBytesOfOld(t *testing.T) {
	bytesOf := func(n byte, parts ...string) string {
		var s string
		for _, p := range parts {
			s += p
		}
		return string([]byte{n<<3 | 2, byte(len(s))}) + s
	}
	message := bytesOf(1, bytesOf(1, "envoy")) +
		bytesOf(2, bytesOf(1, "envoy.initializer.kubernetes.io"),
			bytesOf(2, bytesOf(1, ""), bytesOf(2, "v1"), bytesOf(3, "pods")),
			bytesOf(3, "Ignore"))
	var got v1alpha1.InitializerConfiguration
	if err := got.Unmarshal([]byte(message)); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.InitializerConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "envoy"},
		Initializers: []v1alpha1.Initializer{{
			Name:          "envoy.initializer.kubernetes.io",
			Rules:         []v1alpha1.Rule{{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}},
			FailurePolicy: new(v1alpha1.Ignore),
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want, got:\n%s", diff)
	}
}

func TestProtobufThatIsCutIsRefused(t *testing.T) {
	whole, err := full().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := range whole {
		var got v1alpha1.InitializerConfiguration
		if got.Unmarshal(whole[:n]) != nil {
			refused++
		}
	}
	// Only where a field ends can a message end.
	if refused != len(whole)-4 {
		t.Errorf("%d of %d cuts were refused", refused, len(whole))
	}
}

func TestACopyIsApart(t *testing.T) {
	original := full()
	made := original.DeepCopy()
	if diff := cmp.Diff(original, made); diff != "" {
		t.Fatalf("want, got:\n%s", diff)
	}
	in, status := &made.Initializers[0], &made.Status.Initializers[0]
	in.Rules[0].Resources[0] = "changed"
	*in.FailurePolicy, *in.TimeoutSeconds, *in.MatchPolicy = "changed", 1, "changed"
	in.NamespaceSelector.MatchLabels["team"] = "changed"
	in.MatchConditions[0].Name = "changed"
	in.Controller.ServiceAccount.Name, in.Controller.Lease.Name = "changed", "changed"
	status.LastCompletionTime.Time = time.Now()
	status.Conditions[0].Reason = "changed"
	if diff := cmp.Diff(full(), original); diff != "" {
		t.Errorf("the original has changed:\n%s", diff)
	}
}

func TestDefaults(t *testing.T) {
	c := &v1alpha1.InitializerConfiguration{Initializers: []v1alpha1.Initializer{{Name: "a.b.c", Rules: []v1alpha1.Rule{{}}}}}
	v1alpha1.SetDefaults(c)
	want := []v1alpha1.Initializer{{Name: "a.b.c", Rules: []v1alpha1.Rule{{Scope: new(admissionv1.AllScopes)}}, MatchPolicy: new(admissionv1.Exact)}}
	if diff := cmp.Diff(want, c.Initializers); diff != "" {
		t.Errorf("want, got:\n%s", diff)
	}
	given := full()
	v1alpha1.SetDefaults(given)
	if diff := cmp.Diff(full().Initializers[0], given.Initializers[0]); diff != "" {
		t.Errorf("what is given has changed:\n%s", diff)
	}
}
