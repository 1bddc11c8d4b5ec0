#!/bin/sh
# Builds e2e.test, Kubernetes' conformance suite, the kubectl that its specs run,
# and the programs of their images, of the release in the module file beside this
# script:
#   build.sh FOLDER
# Cold, on two cores, this takes about a quarter of an hour.
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
release=$(sed -n 's/^\tk8s\.io\/kubernetes v//p' go.mod)
flags="-s -w"
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  flags="$flags -X $p.gitVersion=v$release -X $p.gitMajor=1 -X $p.gitMinor=$(echo "$release" | cut -d. -f2)"
done
export GOWORK=off
go test -c -ldflags "$flags" -o "$out/e2e.test" k8s.io/kubernetes/test/e2e
go build -ldflags "$flags" -o "$out/kubectl" k8s.io/kubernetes/cmd/kubectl
export CGO_ENABLED=0
go build -ldflags "$flags" -o "$out/agnhost" k8s.io/kubernetes/test/images/agnhost
go build -ldflags "$flags" -o "$out/nnp" k8s.io/kubernetes/test/images/nonewprivs
install -m 644 "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.* "$out"
