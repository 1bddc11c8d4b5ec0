package image

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// entry is what a secret says about one registry.
type entry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// credentials are those of secrets that are for an image, the longest match
// first. Secrets that make no sense have none.
func credentials(image string, secrets []*corev1.Secret) []*runtimeapi.AuthConfig {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	type match struct {
		place string
		auth  *runtimeapi.AuthConfig
	}
	var matches []match
	for _, secret := range secrets {
		for place, e := range entries(secret) {
			if p := strip(place); matchesPlace(named.Name(), p) {
				matches = append(matches, match{p, e.auth(p)})
			}
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int { return cmp.Compare(b.place, a.place) })
	var auths []*runtimeapi.AuthConfig
	for _, m := range matches {
		auths = append(auths, m.auth)
	}
	return auths
}

// entries are what a secret says, by place.
func entries(secret *corev1.Secret) map[string]entry {
	var all map[string]entry
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]entry `json:"auths"`
		}
		if json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &file) == nil {
			all = file.Auths
		}
	case corev1.SecretTypeDockercfg:
		_ = json.Unmarshal(secret.Data[corev1.DockerConfigKey], &all)
	}
	return all
}

// strip leaves of a registry's address what image names begin with.
func strip(place string) string {
	place = strings.TrimPrefix(strings.TrimPrefix(place, "https://"), "http://")
	place = strings.TrimSuffix(place, "/")
	for _, version := range []string{"/v1", "/v2"} {
		place = strings.TrimSuffix(place, version)
	}
	switch host, _, _ := strings.Cut(place, "/"); host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io" + strings.TrimPrefix(place, host)
	}
	return place
}

// matchesPlace says whether an image lies at a place. A host may have stars for
// parts of its name.
func matchesPlace(name, place string) bool {
	host, folder, _ := strings.Cut(name, "/")
	wantedHost, wantedFolder, _ := strings.Cut(place, "/")
	if strings.Count(host, ".") != strings.Count(wantedHost, ".") {
		return false
	}
	if ok, err := path.Match(wantedHost, host); err != nil || !ok {
		return false
	}
	return wantedFolder == "" || folder == wantedFolder || strings.HasPrefix(folder, strings.TrimSuffix(wantedFolder, "/")+"/")
}

// auth is an entry as runtimes know it.
func (e entry) auth(place string) *runtimeapi.AuthConfig {
	a := &runtimeapi.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken, ServerAddress: place}
	if e.Username == "" && e.Auth != "" {
		if text, err := base64.StdEncoding.DecodeString(e.Auth); err == nil {
			a.Username, a.Password, _ = strings.Cut(strings.TrimRight(string(text), "\x00"), ":")
		}
	}
	return a
}
