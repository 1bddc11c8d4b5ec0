package volume

import (
	"io/fs"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// block is the unit that file systems count in.
const block = 512

// Used returns how many bytes pod's emptyDir volumes take up, by name. What goes
// away while it counts is not counted.
func (v *Volumes) Used(pod *corev1.Pod) map[string]int64 {
	used := map[string]int64{}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.EmptyDir == nil {
			continue
		}
		total := int64(0)
		counted := map[uint64]bool{} // files with several names, once
		_ = filepath.WalkDir(v.place(pod, volume), func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // see above
			}
			info, err := d.Info()
			if err != nil {
				return nil //nolint:nilerr // see above
			}
			stat, ok := info.Sys().(*syscall.Stat_t)
			if !ok || stat.Nlink > 1 && !d.IsDir() && counted[stat.Ino] {
				return nil
			}
			counted[stat.Ino] = true
			total += stat.Blocks * block
			return nil
		})
		used[volume.Name] = total
	}
	return used
}
