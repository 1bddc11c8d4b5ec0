package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/node/nodetest"
)

// server is the image in nginx's place: it serves a page and tells who asked for
// it. On a network that pods share, the port after the first that is taken is its.
func server() (nodetest.Image, error) {
	files, err := nodetest.BusyboxLayer()
	if err != nil {
		return nodetest.Image{}, err
	}
	files.File("www/index.html", 0o644, page)
	return nodetest.Image{Names: []string{"docker.io/library/nginx:busybox"}, Layers: []*nodetest.Layer{files}, Cmd: []string{"sh", "-c", `
trap 'kill $served; exit 0' TERM
for port in 8080 8081 8082 8083; do echo "port $port"; httpd -f -vv -p $port -h /www & served=$!; wait $served; done; exit 1`}}, nil
}

const page = "Welcome to nginx!\n"

// telling is who runs setpoint, and on what.
type telling struct {
	user       uint32
	containerd bool
}

// TestStory tells the first story by the words of the README, on a machine of its
// own: setpoint up, kubectl apply of two pods, logs, exec,
// port-forward, attach, debug, delete. What is on the machine is counted before and
// after, and is the same but for what afterwards names.
func TestStory(t *testing.T) {
	for name, c := range map[string]telling{
		"containerd":           {0, true},
		"process":              {0, false},
		"process-without-root": {65534, false},
	} {
		t.Run(name, func(t *testing.T) {
			if alone(t) {
				c.tell(t)
			}
		})
	}
}

func (c telling) tell(t *testing.T) {
	u := newUser(t, c.user)
	image, err := server()
	if err != nil {
		t.Fatal(err)
	}
	var containerd *nodetest.Runtime
	if c.containerd {
		containerd = usual(t, image)
	} else {
		u.archive(t, image)
	}
	bare := count(t, u.nodeDir(), containerd)
	up := u.start(t, "up", "--eviction-hard", "memory.available<100Mi") // however full this machine's disk is
	eventually(t, func() string {
		if _, err := u.try(t, "wait", "--for=condition=Ready", "node/machine", "--timeout=60s"); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Logf("the node: %s", u.kubectl(t, "get", "node", "machine", "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion} {.status.conditions}"))
	empty := count(t, u.nodeDir(), containerd)
	pods := apply(t, u)
	t.Logf("with pods: %s", count(t, u.nodeDir(), containerd))
	for _, pod := range pods {
		u.visit(t, pod)
	}
	u.kubectl(t, "delete", "-f", filepath.Join(u.home, "nginx.yaml"))
	eventually(t, func() string {
		if left := u.kubectl(t, "get", "pods", "-o", "name"); left != "" {
			return "there is " + left
		}
		return left(count(t, u.nodeDir(), containerd), empty, whileItRuns)
	})
	t.Logf("without pods: %s", count(t, u.nodeDir(), containerd))
	up.end(t)
	eventually(t, func() string { return left(count(t, u.nodeDir(), containerd), bare, afterwards) })
	t.Logf("without a node: %s", count(t, u.nodeDir(), containerd))
}

// usual is a containerd where setpoint looks for one, which has no network yet.
func usual(t *testing.T, image nodetest.Image) *nodetest.Runtime {
	t.Helper()
	r := nodetest.Containerd(t)
	err := r.Load(t.Context(), image)
	if err == nil {
		err = os.MkdirAll("/run/containerd", 0o755)
	}
	if err == nil {
		err = os.Symlink(r.Socket, "/run/containerd/containerd.sock")
	}
	if err == nil {
		err = os.Remove(filepath.Join(r.Dir, "net.d/10-setpoint.conflist"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// archive puts images where the process runtime looks for them.
func (u *user) archive(t *testing.T, images ...nodetest.Image) {
	t.Helper()
	dir := filepath.Join(u.nodeDir(), "process/images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "images.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(nodetest.WriteArchive(f, images...), f.Close()); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(u.nodeDir(), "process"), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, int(u.id), int(u.id)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// apply applies the manifest of the story, with the image alone replaced, and
// returns the two pods that come of it.
func apply(t *testing.T, u *user) []string {
	t.Helper()
	manifest, err := os.ReadFile("testdata/nginx.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(u.home, "nginx.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(string(manifest), "image: nginx", "image: nginx:busybox", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	u.kubectl(t, "apply", "-f", file)
	if _, err := u.try(t, "rollout", "status", "deployment/nginx", "--timeout=110s"); err != nil {
		t.Fatalf("%v\n%s%s", err, u.kubectl(t, "get", "pods", "-o", "yaml"), u.kubectl(t, "get", "events"))
	}
	out := u.kubectl(t, "get", "pods", "-l", "app=nginx", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.phase} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	var pods []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[1] != "Running" || fields[2] != "True" {
			t.Errorf("a pod is not as it should be: %s", line)
		}
		pods = append(pods, fields[0])
	}
	if len(pods) != 2 {
		t.Fatalf("there are %q", pods)
	}
	return pods
}

// visit looks at a pod with all that kubectl has for it.
func (u *user) visit(t *testing.T, pod string) {
	t.Helper()
	var port string
	eventually(t, func() string {
		said := u.kubectl(t, "logs", pod)
		tried := regexp.MustCompile(`port (\d+)`).FindAllStringSubmatch(said, -1)
		if len(tried) != strings.Count(said, "in use")+1 { // what it says and what it complains of come in any order
			return fmt.Sprintf("the log of %s is %q", pod, said)
		}
		port = tried[len(tried)-1][1]
		return ""
	})
	if got := u.kubectl(t, "exec", pod, "--", "sh", "-c", "echo I am $HOSTNAME"); got != "I am "+pod+"\n" {
		t.Errorf("exec said %q", got)
	}
	if got, err := u.hear(t, strings.NewReader("a line\n"), "exec", "-i", pod, "--", "cat"); err != nil || got != "a line\n" {
		t.Errorf("exec said %q, %v", got, err)
	}
	attached, leave := u.follow(t, nil, "attach", pod)
	forwarded, stop := u.follow(t, nil, "port-forward", pod, ":"+port)
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line(t, forwarded, "Forwarding from 127.0.0.1"))
	eventually(t, func() string { // who attaches hears what is said from then on
		if body, err := get(t.Context(), "http://"+address+"/"); err != nil || body != page {
			t.Fatalf("the page is %q, %v", body, err)
		}
		select {
		case one := <-attached:
			if strings.Contains(one, "response:200") {
				return ""
			}
		default:
		}
		return "nothing is said about who asked"
	})
	leave()
	stop()
	u.debug(t, pod)
}

// debug talks to a container for debugging. containerd 1.6 passes on what is typed
// before it listens for the answer, and forgets who listens when a container's errors
// end before its output, so what is said first and last may not be heard. It is
// therefore said again and again, until the container is told to end.
func (u *user) debug(t *testing.T, pod string) {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()  //nolint:errcheck // it was only read
	defer out.Close() //nolint:errcheck // nobody reads any more
	say := func(line string) {
		t.Helper()
		if _, err := fmt.Fprintln(out, line); err != nil {
			t.Fatal(err)
		}
	}
	heard, stop := u.follow(t, in, "debug", pod, "-q", "-i", "--image=nginx:busybox", "--container=look", "--", "sh", "-c",
		"read word; while :; do echo heard $word; test -d /www && echo files; sleep 1; done & read word; kill $!; wait")
	defer stop()
	say("a word")
	line(t, heard, "heard a word")
	line(t, heard, "files")
	say("enough")
	late := time.After(longest)
	for on := true; on; {
		var more string
		select {
		case more, on = <-heard:
			if on && more != "heard a word" && more != "files" {
				t.Errorf("debug said %q", more)
			}
		case <-late:
			t.Fatal("debug does not end")
		}
	}
	if got := u.kubectl(t, "logs", pod, "-c", "look"); !regexp.MustCompile(`^(heard a word\nfiles\n)+(heard a word\n)?$`).MatchString(got) {
		t.Errorf("the log of the container for debugging is %q", got)
	}
}

func get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	body, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("it answered %s", answer.Status))
	}
	return string(body), err
}
