package setpointtest_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/setpointtest"
)

// start starts the program of this tree, or the one that the environment names.
func start(t *testing.T, options ...setpointtest.Option) *setpointtest.Plane {
	t.Helper()
	if os.Getenv(setpointtest.ProgramEnv) == "" {
		path := "../bin/setpoint"
		if _, err := os.Stat(path); err != nil {
			t.Skip("no program: make build makes it, or " + setpointtest.ProgramEnv + " names one")
		}
		t.Setenv(setpointtest.ProgramEnv, path)
	}
	return setpointtest.Start(t, options...)
}

const configMaps = "/api/v1/namespaces/default/configmaps"

func send(t *testing.T, p *setpointtest.Plane, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := p.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func create(t *testing.T, p *setpointtest.Plane, name string) {
	t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)
	if code, text := send(t, p, http.MethodPost, configMaps, body); code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
}

func TestAForkPerCase(t *testing.T) {
	plane := start(t)
	create(t, plane, "installed")
	t.Run("cases", func(t *testing.T) {
		for _, name := range []string{"one", "two", "three"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				fork := plane.Fork(t)
				create(t, fork, "same-name")
				if code, text := send(t, fork, http.MethodGet, configMaps+"/installed", ""); code != http.StatusOK {
					t.Errorf("what was installed is not there: %d %s", code, text)
				}
				config, err := os.ReadFile(fork.Kubeconfig)
				if err != nil || !strings.Contains(string(config), fork.URL) {
					t.Errorf("the kubeconfig is not for %s: %v", fork.URL, err)
				}
				deeper := fork.Fork(t)
				if code, _ := send(t, deeper, http.MethodGet, configMaps+"/same-name", ""); code != http.StatusOK {
					t.Errorf("a fork of the fork lacks what the fork has: %d", code)
				}
			})
		}
	})
	if code, _ := send(t, plane, http.MethodGet, configMaps+"/same-name", ""); code != http.StatusNotFound {
		t.Errorf("a case is seen in main: %d", code)
	}
}

func TestControllers(t *testing.T) {
	plane := start(t, setpointtest.Controllers())
	if code, text := send(t, plane, http.MethodPost, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"brief"}}`); code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	if code, text := send(t, plane, http.MethodDelete, "/api/v1/namespaces/brief", ""); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		code, _ := send(t, plane, http.MethodGet, "/api/v1/namespaces/brief", "")
		if code == http.StatusNotFound {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the namespace is still there: %d", code)
		}
	}
}
