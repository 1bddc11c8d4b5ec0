package bench_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The load on custom resources: objects of 2 KiB.
const (
	customObjects = 3_000 // in each round
	customPatches = 1_000
	customApplies = 500
)

// BenchmarkCustom measures what is done with custom resources, beside
// kube-apiserver and etcd when these are given.
func BenchmarkCustom(b *testing.B) {
	all := newSides(b)
	d := newDefinition(0)
	for _, s := range all {
		s.want(b, http.StatusCreated, http.MethodPost, definitionsPath, "application/json", d.json(b))
		s.waitServed(b, d)
	}
	counted := func(from int) func(round, i int) []byte {
		return func(round, i int) []byte {
			return fmt.Appendf(nil, `{"spec":{"part00":{"count":%d}}}`, from+round*customObjects+i)
		}
	}
	all.measure(b, append([]load{
		{"create", customObjects, d.create},
		patches("merge", customPatches, "application/merge-patch+json", d.of, counted(100)),
		patches("apply", customApplies, "application/apply-patch+yaml", func(round, i int) string { return d.of(round, i) + "?fieldManager=bench&force=true" },
			func(round, i int) []byte {
				return fmt.Appendf(nil, `{"apiVersion":"%s/v1","kind":%q,"metadata":{"name":%q},"spec":{"part01":{"name":"applied","count":%d,"labels":{"by":"bench"}}}}`,
					d.group, d.kind, customName(round, i), i+200)
			}),
		listing{"list", d.path(), "application/json", ""}.load(),
	}, watching(d.path(), d.of, "application/merge-patch+json", counted(1_000_000))...))
}

// customObject is an object of 2 KiB.
func customObject(d definition, round, i int) []byte {
	spec := object{}
	for p := range 8 {
		spec[fmt.Sprintf("part%02d", p)] = object{
			"name": fmt.Sprintf("part-%d-of-%d", p, i), "count": p, "ready": true,
			"ports":  []object{{"port": 80, "protocol": "TCP"}, {"port": 443, "protocol": "TCP"}},
			"labels": object{"app": strings.Repeat("a", 40), "tier": strings.Repeat("b", 40)},
		}
	}
	body, _ := json.Marshal(object{ // of texts and numbers
		"apiVersion": d.group + "/v1", "kind": d.kind, "metadata": object{"name": customName(round, i), "labels": object{"app": "bench"}}, "spec": spec,
	})
	return body
}

func customName(round, i int) string { return fmt.Sprintf("object-%d-%05d", round, i) }

func (d definition) of(round, i int) string { return d.path() + "/" + customName(round, i) }

func (d definition) create(b *testing.B, s *server, round, n int) {
	together(b, n, func(i int) error {
		return s.expect(b.Context(), http.StatusCreated, http.MethodPost, d.path(), "application/json", customObject(d, round, i))
	})
}
