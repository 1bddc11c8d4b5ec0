#!/bin/sh
# Builds e2e.test, Kubernetes' conformance suite, and the kubectl that its specs
# run, of the release in the module file beside this script:
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
