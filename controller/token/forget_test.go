package token

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"setpoint.dev/setpoint/controller/loop"
)

// A secret may be seen to go before its account is seen to come: the account
// forgets it all the same, for nobody looks again.
func TestAnAccountThatIsNotSeenYetForgets(t *testing.T) {
	client := fake.NewClientset(&corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "builder"}, Secrets: []corev1.ObjectReference{{Name: "t"}, {Name: "other"}},
	})
	nothing := informers.NewSharedInformerFactory(client, 0).Core().V1() // it is not started
	c := &Controller{actor: &loop.Actor{Client: client}, secrets: nothing.Secrets().Lister(), accounts: nothing.ServiceAccounts().Lister()}
	for _, name := range []string{"builder", "gone"} {
		if _, err := c.reconcile(t.Context(), key{loop.Key{Namespace: "default", Name: "t"}, name}); err != nil {
			t.Errorf("of %s: %v", name, err)
		}
	}
	account, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "builder", metav1.GetOptions{})
	if err != nil || len(account.Secrets) != 1 || account.Secrets[0].Name != "other" {
		t.Errorf("the account names %v, %v", account.Secrets, err)
	}
}
