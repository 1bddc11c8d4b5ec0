#!/bin/sh
# Builds the servers that Setpoint is compared with into a folder:
#   build.sh FOLDER
# Afterwards FOLDER has kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and etcd. What is there is kept.
set -eu
kubernetes=1.36.3
etcd=3.7.3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
export GOFLAGS=-mod=mod GOWORK=off

# Kubernetes' servers need their staging modules pinned, as this module has them.
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
  [ ! -x "$out/$name" ] || continue
  mkdir "$module/$name" && cd "$module/$name"
  go mod init peer
  go mod edit -require "k8s.io/kubernetes@v$kubernetes"
  sed -n 's/^\t\(k8s\.io\/[^ ]*\) => [^ ]* \(v[^ ]*\)$/\1=\1@\2/p' "$here/go.mod" |
    while read -r pin; do go mod edit -replace "$pin"; done
  go get "k8s.io/kubernetes/cmd/$name@v$kubernetes"
  version=k8s.io/component-base/version
  CGO_ENABLED=0 go build -o "$out/$name" \
    -ldflags "-X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=36" \
    "k8s.io/kubernetes/cmd/$name"
done
if [ ! -x "$out/etcd" ]; then
  mkdir "$module/etcd" && cd "$module/etcd"
  go mod init peer
  go get "go.etcd.io/etcd/server/v3@v$etcd"
  CGO_ENABLED=0 go build -o "$out/etcd" go.etcd.io/etcd/server/v3
fi
