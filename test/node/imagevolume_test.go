package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/node/nodetest"
)

// TestImageVolume mounts an image, and a part of it, where the runtime can: in
// processes of root.
func TestImageVolume(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount the files of an image")
	}
	layer, err := nodetest.BusyboxLayer()
	if err != nil {
		t.Skip(err)
	}
	dir := nodeDir(t)
	images := filepath.Join(dir, "process", "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(images, "busybox.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodetest.WriteArchive(f, nodetest.Image{Names: []string{nodetest.BusyboxImage}, Layers: []*nodetest.Layer{layer}, Cmd: []string{"sh"}}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s := startSmall(t, app.Node{Runtime: app.Process, Dir: dir})
	s.pod("mounts", "test -x /all/bin/busybox && test -x /part/busybox && ! touch /all/new", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "busybox:1.36", PullPolicy: corev1.PullIfNotPresent}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "image", MountPath: "/all"}, {Name: "image", MountPath: "/part", SubPath: "bin"}}
	})
	apptest.Eventually(t, func(ctx context.Context) string {
		p, err := s.k.CoreV1().Pods("default").Get(ctx, "mounts", metav1.GetOptions{})
		if err != nil || p.Status.Phase != corev1.PodSucceeded {
			return fmt.Sprintf("it is %+v, %v", p.Status, err)
		}
		return ""
	})
}
