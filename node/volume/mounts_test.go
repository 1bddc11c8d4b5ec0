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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

const someVolumes = "[{name: data, emptyDir: {}}, {name: settings, configMap: {name: settings, defaultMode: 0644}}, {name: host, hostPath: {path: /srv}}, {name: model, image: {reference: r}}]"

func TestMounts(t *testing.T) {
	hosts := Hosts{
		PodIPs: []string{"10.1.0.5"}, Hostname: "web", Env: []*runtimeapi.KeyValue{{Key: "NAME", Value: []byte("n")}},
		Images: map[string]*runtimeapi.ImageSpec{"model": {Image: "sha256:1"}},
	}
	for _, test := range []struct{ name, mounts, want, err string }{
		{"nothing", `[]`, "/etc/hosts", ""},
		{"volumes", `[{name: data, mountPath: /data}, {name: host, mountPath: srv, readOnly: true}, {name: settings, mountPath: /etc/app}]`, "/data /srv(ro) /etc/app(ro) /etc/hosts", ""},
		{"hosts of its own", `[{name: data, mountPath: /etc/hosts}]`, "/etc/hosts", ""},
		{"propagation", `[{name: data, mountPath: /a, mountPropagation: HostToContainer}, {name: data, mountPath: /b, mountPropagation: Bidirectional}]`, "/a(slave) /b(shared) /etc/hosts", ""},
		{"an image", `[{name: model, mountPath: /m, subPath: part}]`, "/m(image sha256:1 part) /etc/hosts", ""},
		{"no such volume", `[{name: none, mountPath: /a}]`, "", `cannot find volume "none" to mount into container "main"`},
		{"an absolute part", `[{name: data, mountPath: /a, subPath: /x}]`, "", "error SubPath `/x` must not be an absolute path"},
		{"a way out", `[{name: data, mountPath: /a, subPath: a/../../x}]`, "", "unable to provision SubPath `a/../../x`: must not contain '..'"},
		{"an expression", `[{name: data, mountPath: /a, subPathExpr: $(NONE)/$(NAME)}]`, "", "missing value for NONE"},
		{"recursive, and not", `[{name: data, mountPath: /a, readOnly: true, recursiveReadOnly: IfPossible}]`, "/a(ro) /etc/hosts", ""},
		{"recursive, and cannot", `[{name: data, mountPath: /a, readOnly: true, recursiveReadOnly: Enabled}]`, "", `failed to resolve recursive read-only mode: volume "data" requested recursive read-only mode, but it is not supported by the runtime`},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, p := open(t, sources()), pod(t, someVolumes)
			if err := v.Prepare(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			c := &corev1.Container{Name: "main"}
			if err := yaml.UnmarshalStrict([]byte(test.mounts), &c.VolumeMounts); err != nil {
				t.Fatal(err)
			}
			mounts, err := v.Mounts(t.Context(), p, c, hosts)
			if err != nil || test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("error is %v, want %s", err, test.err)
				}
				return
			}
			var got []string
			for _, m := range mounts {
				got = append(got, describe(m))
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func describe(m *runtimeapi.Mount) string {
	text := m.ContainerPath
	if m.Readonly {
		text += "(ro)"
	}
	switch m.Propagation {
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		text += "(slave)"
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		text += "(shared)"
	}
	if m.Image != nil {
		text += fmt.Sprintf("(image %s %s)", m.Image.Image, m.ImageSubPath)
	}
	return text
}

// TestParts mounts parts of volumes, while the container tries to get out.
func TestParts(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mounting := range []bool{true, false} {
		v, p := open(t, sources()), pod(t, someVolumes)
		if mounting && !v.tmpfs {
			t.Log("binding is not tested: this may not mount")
			continue
		}
		v.tmpfs = mounting
		if err := v.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		data := v.place(p, &p.Spec.Volumes[0])
		for name, target := range map[string]string{"out": outside, "up": "../../..", "in": "deep", "self": "self"} {
			if err := os.Symlink(target, filepath.Join(data, name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, test := range []struct {
			name, volume, part string
			ok                 bool
		}{
			{"a new folder", "data", "deep/er", true},
			{"a link to it", "data", "in/er", true},
			{"a file of a map", "settings", "color", true},
			{"out by a link", "data", "out", false},
			{"out by a link, below", "data", "out/secret", false},
			{"up by a link", "data", "up", false},
			{"a new folder outside", "data", "out/new", false},
			{"in circles", "data", "self", false},
		} {
			t.Run(fmt.Sprintf("%s, mounting %v", test.name, mounting), func(t *testing.T) {
				c := &corev1.Container{Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: test.volume, MountPath: "/p", SubPath: test.part}}}
				for range 2 {
					mounts, err := v.Mounts(t.Context(), p, c, Hosts{})
					switch {
					case test.ok && err != nil:
						t.Fatal(err)
					case test.ok:
						if _, err := os.Stat(mounts[0].HostPath); err != nil {
							t.Error(err)
						}
					case err == nil || err.Error() != fmt.Sprintf("failed to prepare subPath for volumeMount %q of container %q", test.volume, "main"):
						t.Errorf("error is %v, mounts are %v", err, mounts)
					}
				}
			})
		}
		if _, err := os.Stat(filepath.Join(outside, "new")); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a folder was made outside of the volume")
		}
	}
}

// TestRemove removes what an earlier agent mounted, and nothing of the host.
func TestRemove(t *testing.T) {
	v := open(t, sources())
	if !v.tmpfs {
		t.Skip("this may not mount file systems")
	}
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, "part"), 0o755); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(host, "part", "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := pod(t, "[{name: host, hostPath: {path: "+host+"}}, {name: memory, emptyDir: {medium: Memory}}, {name: keys, secret: {secretName: keys, defaultMode: 0400}}]")
	if err := v.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := &corev1.Container{Name: "main", TerminationMessagePath: "/dev/termination-log", VolumeMounts: []corev1.VolumeMount{{Name: "host", MountPath: "/h", SubPath: "part"}}}
	mounts, err := v.Mounts(t.Context(), p, c, Hosts{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(mounts[0].HostPath, "kept")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(mounts[1].HostPath); err != nil || info.Mode() != 0o666 {
		t.Errorf("the file for the last words is %v, %v", info, err)
	}
	next := New(v.cfg)
	for range 2 {
		if err := next.Remove(context.Background(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a file of the host is gone: %v", err)
	}
	if uids, err := next.Known(); err != nil || len(uids) != 0 {
		t.Errorf("%v is left, %v", uids, err)
	}
	if err := next.Remove(context.Background(), "../x"); err == nil {
		t.Error("a path is taken for a pod")
	}
}

func TestMessagesAreFew(t *testing.T) {
	v, p := open(t, sources()), pod(t, "[]")
	if err := v.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := &corev1.Container{Name: "main", TerminationMessagePath: "/dev/termination-log"}
	var last string
	for range 10 {
		mounts, err := v.Mounts(t.Context(), p, c, Hosts{})
		if err != nil {
			t.Fatal(err)
		}
		last = mounts[0].HostPath
	}
	entries, err := os.ReadDir(filepath.Dir(last))
	if err != nil || len(entries) != keepMessages+1 {
		t.Errorf("%d messages are kept, %v", len(entries), err)
	}
}

func TestHosts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	p := &corev1.Pod{Spec: corev1.PodSpec{HostAliases: []corev1.HostAlias{{IP: "10.0.0.9", Hostnames: []string{"a", "b"}}}}}
	if err := writeHosts(path, p, Hosts{PodIPs: []string{"10.1.0.5", "fd00::5"}, Hostname: "web", Domain: "x.shop.svc.cluster.local"}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n10.1.0.5\tweb.x.shop.svc.cluster.local\tweb\nfd00::5\tweb.x.shop.svc.cluster.local\tweb\n" +
		"\n# Entries added by HostAliases.\n10.0.0.9\ta\tb\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}
