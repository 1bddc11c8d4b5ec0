package protection

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name                string
		deleted, held, used bool
		want                verdict
	}{
		{name: "new", want: add},
		{name: "held", held: true, want: leave},
		{name: "deleted, used", deleted: true, held: true, used: true, want: leave},
		{name: "deleted, not used", deleted: true, held: true, want: remove},
		{name: "deleted, held by others", deleted: true, want: leave},
	} {
		t.Run(c.name, func(t *testing.T) {
			obj := &metav1.ObjectMeta{Finalizers: []string{"other"}}
			if c.deleted {
				obj.DeletionTimestamp = new(metav1.Now())
			}
			if c.held {
				obj.Finalizers = append(obj.Finalizers, claimFinalizer)
			}
			v, err := plan(obj, claimFinalizer, func() (bool, error) { return c.used, nil })
			if v != c.want || err != nil {
				t.Errorf("%s, not %s: %v", v, c.want, err)
			}
			carry(obj, claimFinalizer, v)
			if held := len(obj.Finalizers) == 2; held != (v == add || v == leave && c.held) {
				t.Errorf("finalizers are %v", obj.Finalizers)
			}
		})
	}
}

func TestUses(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-v", OwnerReferences: []metav1.OwnerReference{{UID: "u", Controller: new(true)}}}}
	byName := corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "p-v"}}}
	made := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	for _, c := range []struct {
		name string
		node string
		uid  string
		done bool
		of   corev1.Volume
		want bool
	}{
		{name: "by name", node: "n", uid: "u", of: byName, want: true},
		{name: "by name, on no node", uid: "u", of: byName},
		{name: "by name, shut down", node: "n", uid: "u", done: true, of: byName, want: true},
		{name: "made for it", node: "n", uid: "u", of: made, want: true},
		{name: "made for it, shut down", node: "n", uid: "u", done: true, of: made},
		{name: "made for another", node: "n", uid: "other", of: made},
		{name: "not at all", node: "n", uid: "u", of: corev1.Volume{Name: "v"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: c.node, Volumes: []corev1.Volume{c.of}}}
			p.UID = "u"
			if c.uid != "u" {
				p.UID = "other"
			}
			if c.done {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(0))
			}
			if got := uses(p, claim); got != c.want {
				t.Errorf("uses: %v", got)
			}
		})
	}
}
