package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// objects are the sources of a test.
type objects struct {
	maps    map[string]*corev1.ConfigMap
	secrets map[string]*corev1.Secret
	token   string
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if held := o.maps[name]; held != nil {
		return held, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
}

func (o *objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if held := o.secrets[name]; held != nil {
		return held, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
}

func (o *objects) Token(context.Context, *corev1.Pod, *corev1.ServiceAccountTokenProjection) (string, error) {
	if o.token == "" {
		return "", errors.New("failed to fetch token: no")
	}
	return o.token, nil
}

func sources() *objects {
	return &objects{
		maps:    map[string]*corev1.ConfigMap{"settings": {Data: map[string]string{"color": "red", "size": "xl"}, BinaryData: map[string][]byte{"logo": {0, 1}}}},
		secrets: map[string]*corev1.Secret{"keys": {Data: map[string][]byte{"key": []byte("s3cret")}}},
		token:   "t0ken",
	}
}

// open returns volumes that are on disk, in memory too if this may mount.
func open(t *testing.T, o *objects) *Volumes {
	t.Helper()
	v := New(Config{Dir: filepath.Join(t.TempDir(), "pods"), Sources: o, NodeAllocatable: func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	}})
	t.Cleanup(func() {
		uids, err := v.Known()
		for _, uid := range uids {
			err = errors.Join(err, v.Remove(context.Background(), uid))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return v
}

// pod has one container, which mounts each volume at /<name>.
func pod(t *testing.T, volumes string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1", Labels: map[string]string{"app": "web"}}}
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	if err := yaml.UnmarshalStrict([]byte(volumes), &p.Spec.Volumes); err != nil {
		t.Fatal(err)
	}
	for _, v := range p.Spec.Volumes {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return p
}

// seen lists what a container sees in a volume: path, mode and content.
func seen(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.HasPrefix(e.Name(), ".."):
		case info.IsDir():
			resolved, err := filepath.EvalSymlinks(path)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.SplitSeq(seen(t, resolved), " ") {
				lines = append(lines, e.Name()+"/"+line)
			}
		default:
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%s:%o:%s", e.Name(), info.Mode().Perm(), data))
		}
	}
	return strings.Join(lines, " ")
}

func TestContent(t *testing.T) {
	for _, test := range []struct {
		name, volume string
		change       func(*corev1.Pod)
		want, err    string
	}{
		{name: "config map", volume: `configMap: {name: settings, defaultMode: 0644}`, want: "color:644:red logo:644:\x00\x01 size:644:xl"},
		{name: "items", volume: `configMap: {name: settings, defaultMode: 0644, items: [{key: color, path: a/b/c, mode: 0400}, {key: size, path: a/d}]}`, want: "a/b/c:400:red a/d:644:xl"},
		{name: "no such key", volume: `configMap: {name: settings, defaultMode: 0644, items: [{key: none, path: a}]}`, err: `MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: none`},
		{name: "an optional key", volume: `configMap: {name: settings, optional: true, defaultMode: 0644, items: [{key: none, path: a}, {key: size, path: b}]}`, want: "b:644:xl"},
		{name: "no such map", volume: `configMap: {name: none, defaultMode: 0644}`, err: `MountVolume.SetUp failed for volume "v" : configmap "none" not found`},
		{name: "an optional map", volume: `configMap: {name: none, optional: true, defaultMode: 0644}`},
		{name: "secret", volume: `secret: {secretName: keys, defaultMode: 0400}`, want: "key:400:s3cret"},
		{name: "no such secret", volume: `secret: {secretName: none, defaultMode: 0644}`, err: `MountVolume.SetUp failed for volume "v" : secret "none" not found`},
		{name: "no such key of a secret", volume: `secret: {secretName: keys, defaultMode: 0644, items: [{key: x, path: z}]}`, err: `MountVolume.SetUp failed for volume "v" : references non-existent secret key: x`},
		{name: "fields", volume: `downwardAPI: {defaultMode: 0644, items: [{path: name, fieldRef: {fieldPath: metadata.name}}, {path: d/labels, mode: 0600, fieldRef: {fieldPath: metadata.labels}}, {path: mem, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}]}`, want: `d/labels:600:app="web" mem:644:64 name:644:web`},
		{name: "all in one", volume: `projected: {defaultMode: 0644, sources: [{configMap: {name: settings, items: [{key: color, path: color}]}}, {secret: {name: keys}}, {downwardAPI: {items: [{path: ns, fieldRef: {fieldPath: metadata.namespace}}]}}, {serviceAccountToken: {path: token, expirationSeconds: 3600}}]}`, want: "color:644:red key:644:s3cret ns:644:shop token:644:t0ken"},
		{
			name: "a token for a user", volume: `projected: {defaultMode: 0644, sources: [{serviceAccountToken: {path: token}}]}`, want: "token:600:t0ken",
			change: func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64)} },
		},
		{
			name: "a token for a group", volume: `projected: {defaultMode: 0644, sources: [{serviceAccountToken: {path: token}}]}`, want: "token:640:t0ken",
			change: func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64)} },
		},
		{name: "a way out", volume: `configMap: {name: settings, defaultMode: 0644, items: [{key: color, path: ../x}]}`, err: `MountVolume.SetUp failed for volume "v" : invalid path: must not contain '..': ../x`},
		{name: "a claim", volume: `persistentVolumeClaim: {claimName: c}`, err: `MountVolume.SetUp failed for volume "v" : persistent volumes are not supported by this node`},
		{
			name: "not used by any container", volume: `configMap: {name: none, defaultMode: 0644}`, want: "nothing",
			change: func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, p := open(t, sources()), pod(t, "[{name: v, "+test.volume+"}]")
			if test.change != nil {
				test.change(p)
			}
			err := v.Prepare(t.Context(), p)
			if err != nil || test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("error is %v, want %s", err, test.err)
				}
				return
			}
			dir := v.place(p, &p.Spec.Volumes[0])
			if _, err := os.Stat(dir); test.want == "nothing" {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a volume that nobody uses is there: %v", err)
				}
				return
			}
			if diff := cmp.Diff(test.want, seen(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestUpdate changes what a volume holds, and kills whoever was changing it.
func TestUpdate(t *testing.T) {
	o := sources()
	v, p := open(t, o), pod(t, "[{name: v, configMap: {name: settings, defaultMode: 0644}}]")
	dir := v.place(p, &p.Spec.Volumes[0])
	prepare := func() (stamped string) {
		t.Helper()
		if err := v.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		stamped, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		return stamped
	}
	first := prepare()
	if again := prepare(); again != first {
		t.Errorf("what has not changed is written again: %s, then %s", first, again)
	}
	if target, _ := os.Readlink(filepath.Join(dir, "color")); target != "..data/color" {
		t.Errorf("color leads to %s", target)
	}
	for _, left := range []string{"..2020_01_01_00_00_00.1", "..data_tmp"} {
		if err := os.Mkdir(filepath.Join(dir, left), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	o.maps["settings"] = &corev1.ConfigMap{Data: map[string]string{"color": "blue", "shape": "round"}}
	if second := prepare(); second == first {
		t.Error("what has changed is not written")
	}
	if diff := cmp.Diff("color:644:blue shape:644:round", seen(t, dir)); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 { // ..data, its folder, color, shape
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

func TestEmptyDir(t *testing.T) {
	v, p := open(t, sources()), pod(t, "[{name: disk, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}, {name: pages, emptyDir: {medium: HugePages}}]")
	group := int64(1234)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	err := v.Prepare(t.Context(), p)
	if want := `MountVolume.SetUp failed for volume "pages" : medium HugePages: hugePages storage requested, but there is no resource request for huge pages`; err == nil || err.Error() != want {
		t.Errorf("error is %v", err)
	}
	disk := v.place(p, &p.Spec.Volumes[0])
	if err := os.WriteFile(filepath.Join(disk, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = v.Prepare(t.Context(), p)
	info, err := os.Stat(disk)
	if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if kept, err := os.Stat(filepath.Join(disk, "kept")); err != nil || kept.Mode() != 0o600 {
		t.Errorf("a file of the container's has become %v, %v", kept, err)
	}
	if !v.tmpfs {
		t.Skip("the rest needs to mount file systems, which this may not")
	}
	memory := v.place(p, &p.Spec.Volumes[1])
	if err := os.WriteFile(filepath.Join(memory, "large"), make([]byte, 2<<20), 0o600); err == nil {
		t.Error("2 MiB fit in 1 MiB")
	}
	if owned(disk, group, false) != true || owned(memory, group, false) != true {
		t.Error("the volumes are not the group's")
	}
}

// TestEmptyDirCutShort kills the agent before a volume belongs to its group, and
// lets the pod change a volume that was made.
func TestEmptyDirCutShort(t *testing.T) {
	v, p := open(t, sources()), pod(t, "[{name: d, emptyDir: {}}]")
	group := int64(os.Getgid())
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	dir := v.place(p, &p.Spec.Volumes[0])
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, want := range []fs.FileMode{fs.ModeDir | fs.ModeSetgid | 0o777, fs.ModeDir | 0o700} {
		if err := v.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode() != want {
			t.Errorf("mode is %v, %v, want %v", info.Mode(), err, want)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWithoutMounts says so when memory is asked for and disk is given.
func TestWithoutMounts(t *testing.T) {
	var told []string
	v := New(Config{Dir: t.TempDir(), Event: func(_ *corev1.Pod, kind, reason, message string) { told = append(told, kind+" "+reason+": "+message) }})
	v.tmpfs = false
	p := pod(t, "[{name: m, emptyDir: {medium: Memory}}]")
	for range 2 {
		if err := v.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{`Warning VolumeNotInMemory: volume "m" is a folder on disk: this node may not mount file systems in memory`}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error(diff)
	}
}

func TestHostPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, path, kind, err string }{
		{"anything", "none", "", ""},
		{"a directory", ".", "Directory", ""},
		{"not a directory", "file", "Directory", "is not a directory"},
		{"no directory", "none", "Directory", "is not a directory"},
		{"made", "made/it", "DirectoryOrCreate", ""},
		{"not made", "file", "DirectoryOrCreate", "is not a directory"},
		{"a file", "file", "File", ""},
		{"no file", "none", "File", "is not a file"},
		{"not a file", ".", "File", "is not a file"},
		{"made as a file", "new", "FileOrCreate", ""},
		{"no parent", "none/new", "FileOrCreate", "no such file or directory"},
		{"not a socket", "file", "Socket", "is not a socket file"},
		{"not a character device", "file", "CharDevice", "is not a character device"},
		{"a character device", "/dev/null", "CharDevice", ""},
		{"not a block device", "/dev/null", "BlockDevice", "is not a block device"},
		{"a way out", "/a/../b", "", "must not contain '..'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			kind := corev1.HostPathType(test.kind)
			s := &corev1.HostPathVolumeSource{Path: test.path, Type: &kind}
			if !filepath.IsAbs(s.Path) {
				s.Path = filepath.Join(dir, s.Path)
			}
			err := checkHostPath(s)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error is %v, want %s", err, test.err)
			}
		})
	}
}
