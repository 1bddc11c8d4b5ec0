package conformance

// canaryDefinition teaches a kind with all that kubectl looks at.
const canaryDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: canaries.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: canaries, singular: canary, kind: Canary, shortNames: [cn], categories: [birds]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Song, type: string, jsonPath: .spec.song}
    schema:
      openAPIV3Schema:
        type: object
        description: Canary sings.
        properties:
          spec:
            type: object
            properties:
              song: {type: string, default: trill, description: Song is what it sings.}
              replicas: {type: integer, default: 1}
              seeds:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, grams: {type: integer}}}
          status: {type: object, properties: {replicas: {type: integer}}}
`

const canary = `
apiVersion: example.org/v1
kind: Canary
metadata: {name: tweety, labels: {cage: one}}
spec: {seeds: [{name: hemp, grams: 3}]}
`

const canaryMillet = `
apiVersion: example.org/v1
kind: Canary
metadata: {name: tweety}
spec: {seeds: [{name: millet, grams: 5}]}
`

const canaryLoud = `
apiVersion: example.org/v1
kind: Canary
metadata: {name: tweety, labels: {cage: two}}
spec: {song: opera, replicas: 2}
`

// customDay is a day with kinds that are taught while the server runs: the one
// of the story as it was written for v1beta1, and one of today.
var customDay = []step{
	{run: "apply -f testdata/network-crd.yaml", want: []string{"customresourcedefinition.apiextensions.k8s.io/networks.samplecrd.k8s.io created"}},
	{run: "apply -f testdata/network.yaml", want: []string{"network.samplecrd.k8s.io/example-network created"}},
	{run: "get network", want: []string{"NAME", "AGE", "example-network"}},
	{run: "get networks example-network -o jsonpath={.spec.cidr}/{.spec.gateway}", want: []string{"192.168.0.0/16/192.168.0.1"}},
	{run: "describe network example-network", want: []string{"Cidr:", "192.168.0.0/16"}},
	{run: "get crd networks.samplecrd.k8s.io -o jsonpath={.apiVersion}/{.spec.versions[0].schema.openAPIV3Schema.type}", want: []string{"apiextensions.k8s.io/v1/object"}},
	{run: "apply -f testdata/network-crd.yaml", want: []string{"unchanged"}},
	{run: "delete -f testdata/network.yaml", want: []string{`"example-network" deleted`}},
	{run: "delete -f testdata/network-crd.yaml", want: []string{"deleted"}},
	{run: "get network", err: "the server could not find the requested resource"},

	{run: "create -f -", stdin: canaryDefinition, want: []string{"canaries.example.org created"}},
	{run: "wait --for=condition=Established crd/canaries.example.org --timeout=110s", want: []string{"condition met"}},
	{run: "api-resources --api-group=example.org", want: []string{"canaries", "cn", "example.org/v1", "true", "Canary"}},
	{run: "explain canary.spec", want: []string{"song", "Song is what it sings.", "replicas"}},
	{run: "explain canary", want: []string{"KIND:", "Canary sings."}},
	{run: "apply -f -", stdin: canary, want: []string{"canary.example.org/tweety created"}},
	{run: "get cn", want: []string{"NAME", "SONG", "tweety", "trill"}},
	{run: "get birds -o name", want: []string{"canary.example.org/tweety"}},
	{run: "get canaries -l cage=one -o jsonpath={.items[0].spec.replicas}", want: []string{"1"}},
	{run: "scale canary tweety --replicas=3", want: []string{"scaled"}},
	{run: "get canary tweety -o jsonpath={.spec.replicas}/{.metadata.generation}", want: []string{"3/2"}},
	{run: `patch canary tweety --type=merge -p '{"spec":{"song":"chirp"}}'`, want: []string{"patched"}},
	{run: `patch canary tweety -p '{"spec":{"song":"chirp"}}'`, err: "application/strategic-merge-patch+json is not supported"},
	{run: "apply --server-side --field-manager=feeder -f -", stdin: canaryMillet, want: []string{"serverside-applied"}},
	{run: "get canary tweety -o jsonpath={.spec.seeds[*].name}", want: []string{"millet"}},
	{run: "apply --server-side --field-manager=other -f -", stdin: canaryLoud, err: "conflict"},
	{run: "replace -f -", stdin: canaryLoud, want: []string{"replaced"}},
	{run: "get canary tweety -o jsonpath={.spec.song}/{.spec.replicas}/{.metadata.labels.cage}", want: []string{"opera/2/two"}},
	{run: "label canary tweety sings=yes", want: []string{"labeled"}},
	{run: "apply -f -", stdin: "{apiVersion: example.org/v1, kind: Canary, metadata: {name: odd}, spec: {wings: 2}}", err: "strict decoding error: unknown field \"spec.wings\""},
	{run: "delete crd canaries.example.org", want: []string{"deleted"}},
	{run: "get canaries", err: "the server could not find the requested resource"},
}
