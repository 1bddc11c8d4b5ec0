package volume

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/node/disk"
)

// Used is what pod's emptyDir volumes take up.
func (v *Volumes) Used(pod *corev1.Pod) []statsapi.VolumeStats {
	var all []statsapi.VolumeStats
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.EmptyDir == nil {
			continue
		}
		bytes, files := disk.Used(v.place(pod, volume))
		all = append(all, statsapi.VolumeStats{Name: volume.Name, FsStats: statsapi.FsStats{Time: metav1.NewTime(time.Now()), UsedBytes: &bytes, InodesUsed: &files}})
	}
	return all
}
