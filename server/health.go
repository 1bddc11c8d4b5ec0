package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apimachineryversion "k8s.io/apimachinery/pkg/version"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/server/rest"
)

// cacheFor lets a document be kept for some seconds.
func cacheFor(seconds int) string { return "public, max-age=" + strconv.Itoa(seconds) }

// version is what the API says it is: the release whose contract it keeps.
var version = apimachineryversion.Info{
	Major: "1", Minor: "36", EmulationMajor: "1", EmulationMinor: "36", MinCompatibilityMajor: "1", MinCompatibilityMinor: "35",
	GitVersion: "v1.36.3+setpoint", GitTreeState: "clean",
	GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
}

// Version is the version of the API that is served.
func Version() string { return version.GitVersion }

func serveVersion(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		rest.WriteError(w, r, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false))
		return
	}
	if err := rest.Offer(r, []string{codec.JSON}); err != nil {
		rest.WriteError(w, r, err)
		return
	}
	body, _ := json.MarshalIndent(version, "", "  ") // of texts
	w.Header().Set("Content-Type", codec.JSON)
	_, _ = w.Write(body) // the client has gone
}

// checks are what /livez and /readyz look at: the server answers, and with
// readyz it does not mean to end.
func (s *Server) checks(path string) map[string]func() error {
	alive := func() error { return nil }
	c := map[string]func() error{"ping": alive, "log": alive}
	if strings.HasPrefix(path, "/readyz") {
		c["shutdown"] = func() error {
			if s.draining.Load() {
				return fmt.Errorf("process is shutting down")
			}
			return nil
		}
	}
	return c
}

// health serves a group of checks, or one of them.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	group, one, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	checks := s.checks(r.URL.Path)
	names := make([]string, 0, len(checks))
	for name := range checks {
		names = append(names, name)
	}
	slices.Sort(names)
	if one != "" {
		if checks[one] == nil {
			http.NotFound(w, r)
			return
		}
		names = []string{one}
	}
	excluded := r.URL.Query()["exclude"]
	var b strings.Builder
	failed := false
	for _, name := range names {
		switch {
		case slices.Contains(excluded, name):
			fmt.Fprintf(&b, "[+]%s excluded: ok\n", name)
		case checks[name]() != nil:
			failed = true
			fmt.Fprintf(&b, "[-]%s failed: reason withheld\n", name)
		default:
			fmt.Fprintf(&b, "[+]%s ok\n", name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if one == "" {
		w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	if failed {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, "%s%s check failed\n", b.String(), group) // the client has gone
		return
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		_, _ = fmt.Fprintf(w, "%s%s check passed\n", b.String(), group) // the client has gone
		return
	}
	_, _ = fmt.Fprint(w, "ok") // the client has gone
}

// index lists the paths there are.
func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	paths := []string{"/.well-known/openid-configuration", "/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/openid/v1/jwks", "/readyz", "/version"}
	body, _ := json.MarshalIndent(map[string][]string{"paths": paths}, "", "  ") // of texts
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client has gone
}
