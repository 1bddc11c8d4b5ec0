package bench_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

var (
	kubeControllerManager = flag.String("kube-controller-manager", "", "kube-controller-manager to run beside kube-apiserver")
	replicas              = flag.Int("replicas", 1000, "replicas of a deployment that is rolled")
	dependents            = flag.Int("dependents", 10000, "objects that go with their owner")
)

// newClusters are sides that have their controllers. The peer's may ask as often
// as they like, as Setpoint's may.
func newClusters(b *testing.B) sides {
	b.Helper()
	return newTeams(b, "--controllers=*", "kube-controller-manager", *kubeControllerManager, (*server).startControllers)
}

// newTeams are sides that do more than serve: Setpoint with a flag, and the peer
// with another program of its own, if that is given. Neither gives pods a service
// account.
func newTeams(b *testing.B, flag, name, program string, join func(*server, *testing.B)) sides {
	b.Helper()
	all := sides{setpointServer(b, buildSetpoint(b))}
	all[0].processes[0].Args = append(all[0].processes[0].Args, flag)
	if hasPeer() && program != "" {
		all = append(all, peerServer(b))
	} else {
		b.Logf("no peer: give -kube-apiserver, -%s and -etcd to measure beside them", name)
	}
	for who, s := range all {
		api := s.processes[len(s.processes)-1]
		api.Args = append(api.Args, "--disable-admission-plugins", "ServiceAccount")
		s.start(b)
		b.Cleanup(s.stop)
		if who > 0 {
			join(s, b)
		}
	}
	return all
}

// kubeconfig writes the admin's client configuration for another program.
func (s *server) kubeconfig(b *testing.B, name string) (path string) {
	b.Helper()
	path = filepath.Join(s.dir, name)
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:%d","insecure-skip-tls-verify":true}}],
"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`, s.port, token), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// join starts a program that is counted with the server.
func (s *server) join(b *testing.B, program string, args ...string) {
	b.Helper()
	p := exec.CommandContext(b.Context(), program, append(args, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(freePort(b)),
		"--cert-dir", filepath.Join(s.dir, filepath.Base(program)+"-certs"))...)
	if err := p.Start(); err != nil {
		b.Fatal(err)
	}
	s.processes = append([]*exec.Cmd{p}, s.processes...)
}

// startControllers starts the controllers of a kube-apiserver.
func (s *server) startControllers(b *testing.B) {
	b.Helper()
	s.join(b, *kubeControllerManager, "--kubeconfig", s.kubeconfig(b, "controllers"), "--leader-elect=false",
		"--service-account-private-key-file", filepath.Join(s.dir, "sa.key"), "--root-ca-file", filepath.Join(s.dir, "certs", "apiserver.crt"),
		"--kube-api-qps", "5000", "--kube-api-burst", "5000")
}

const deployments = "/apis/apps/v1/namespaces/default/deployments"

// BenchmarkRollout makes a Deployment of 1,000 replicas, rolls it twice, and
// removes it with its pods, beside kube-controller-manager with kube-apiserver
// and etcd when these are given. An actor says of each pod that it is ready;
// and there may never be more pods, or fewer ready ones, than a quarter of the
// replicas allows. Costs are by replica.
func BenchmarkRollout(b *testing.B) {
	all := newClusters(b)
	actors := map[*server]*nodes{}
	for _, s := range all {
		actors[s] = playNodes(b, s)
	}
	name := func(round int) string { return fmt.Sprintf("web-%d", round) }
	image := func(version string) object {
		return object{"spec": object{"template": object{"spec": object{"containers": []object{{"name": "c", "image": version}}}}}}
	}
	all.measure(b, []load{
		{"deploy", *replicas, func(b *testing.B, s *server, round, n int) {
			labels := object{"app": name(round)}
			s.want(b, http.StatusCreated, http.MethodPost, deployments, "application/json", encode(b, object{
				"metadata": object{"name": name(round)},
				"spec": object{"replicas": n, "selector": object{"matchLabels": labels}, "template": object{
					"metadata": object{"labels": labels}, "spec": object{"containers": []object{{"name": "c", "image": "v1"}}},
				}},
			}))
			s.rolled(b, name(round), n)
		}},
		{"roll-twice", *replicas, func(b *testing.B, s *server, round, n int) {
			actors[s].fence(n+n/4, n-n/4)
			for _, version := range []string{"v2", "v3"} {
				s.want(b, http.StatusOK, http.MethodPatch, deployments+"/"+name(round), "application/strategic-merge-patch+json", encode(b, image(version)))
				s.rolled(b, name(round), n)
			}
			if wrong := actors[s].unfence(); wrong != "" {
				b.Error(wrong)
			}
		}},
		{"remove", *replicas, func(b *testing.B, s *server, round, _ int) {
			s.want(b, http.StatusOK, http.MethodDelete, deployments+"/"+name(round), "application/json", []byte(`{"propagationPolicy":"Foreground"}`))
			s.gone(b, "/api/v1/namespaces/default/pods")
			s.gone(b, deployments)
		}},
	})
}

// BenchmarkGarbage makes 10,000 objects of which one owns a hundred and these
// the rest, and deletes the first, once in the background and once after all
// others, beside kube-controller-manager when it is given. Costs are by object.
func BenchmarkGarbage(b *testing.B) {
	all := newClusters(b)
	all.each(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"garbage"}}`))
	removal := func(policy string) func(b *testing.B, s *server, _, n int) {
		return func(b *testing.B, s *server, _, _ int) {
			s.want(b, http.StatusOK, http.MethodDelete, dependentsPath+"/root", "application/json", fmt.Appendf(nil, `{"propagationPolicy":%q}`, policy))
			s.gone(b, dependentsPath)
		}
	}
	all.measure(b, []load{
		{"make", *dependents, makeFamily},
		{"background", *dependents, removal("Background")},
		{"make-again", *dependents, makeFamily},
		{"foreground", *dependents, removal("Foreground")},
	})
}

const dependentsPath = "/api/v1/namespaces/garbage/secrets"

// makeFamily makes n objects: one that owns branches, which own the rest.
func makeFamily(b *testing.B, s *server, _, n int) {
	root, err := s.makeDependent(b, "root", "", "")
	if err != nil {
		b.Fatal(err)
	}
	uids := make([]string, branches)
	together(b, branches, func(i int) (err error) {
		uids[i], err = s.makeDependent(b, fmt.Sprintf("branch-%d", i), "root", root)
		return err
	})
	together(b, n-branches-1, func(i int) error {
		_, err := s.makeDependent(b, fmt.Sprintf("leaf-%d", i), fmt.Sprintf("branch-%d", i%branches), uids[i%branches])
		return err
	})
}

// makeDependent makes an object of an owner, "" for none, and returns its UID.
func (s *server) makeDependent(b *testing.B, name, owner, ownerUID string) (string, error) {
	b.Helper()
	about := object{"name": name}
	if owner != "" {
		about["ownerReferences"] = []object{{"apiVersion": "v1", "kind": "Secret", "name": owner, "uid": ownerUID, "blockOwnerDeletion": true}}
	}
	code, answer, err := s.do(b.Context(), http.MethodPost, dependentsPath, "application/json", encode(b, object{"metadata": about}))
	if err != nil || code != http.StatusCreated {
		return "", fmt.Errorf("create %s: %d, %w: %.500s", name, code, err, answer)
	}
	var made struct{ Metadata struct{ UID string } }
	err = json.Unmarshal(answer, &made)
	return made.Metadata.UID, err
}

// branches is how many objects the first one owns.
const branches = 100

func encode(b *testing.B, of object) []byte {
	b.Helper()
	body, err := json.Marshal(of)
	if err != nil {
		b.Fatal(err)
	}
	return body
}

// patience is how long something that must come about may take, and glance how
// often it is looked for.
const (
	patience = 10 * time.Minute
	glance   = 100 * time.Millisecond
)

// until waits for something that must come about.
func (s *server) until(b *testing.B, what string, is func() bool) {
	b.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(glance) {
		if time.Now().After(deadline) {
			b.Fatalf("%s has not come about", what)
		}
	}
}

// rolled waits for the end of a rollout.
func (s *server) rolled(b *testing.B, name string, n int) {
	b.Helper()
	s.until(b, "the rollout of "+name, func() bool {
		var d struct {
			Metadata struct{ Generation int }
			Status   struct{ ObservedGeneration, Replicas, UpdatedReplicas, AvailableReplicas int }
		}
		if err := json.Unmarshal(s.want(b, http.StatusOK, http.MethodGet, deployments+"/"+name, "", nil), &d); err != nil {
			b.Fatal(err)
		}
		return d.Status.ObservedGeneration >= d.Metadata.Generation && d.Status.Replicas == n && d.Status.UpdatedReplicas == n && d.Status.AvailableReplicas == n
	})
}

// gone waits until a list is empty.
func (s *server) gone(b *testing.B, path string) {
	b.Helper()
	s.until(b, "the end of "+path, func() bool {
		var list struct{ Items []struct{} }
		if err := json.Unmarshal(s.want(b, http.StatusOK, http.MethodGet, path+"?limit=1", "", nil), &list); err != nil {
			b.Fatal(err)
		}
		return len(list.Items) == 0
	})
}
