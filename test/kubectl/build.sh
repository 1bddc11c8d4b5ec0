#!/bin/sh
# Builds the stock kubectls that the conformance tests run into a folder: that
# of the release that Setpoint serves, and the oldest that may talk to it.
#   build.sh FOLDER
# Afterwards FOLDER has kubectl-1.36 and kubectl-1.35. Versions are those of the
# module files beside this script.
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"

# build RELEASE MODULE-FILE
build() {
  patch=$(sed -n 's/^\tk8s\.io\/kubectl v0\.//p' "$2")
  version=k8s.io/component-base/version
  GOWORK=off CGO_ENABLED=0 go build -modfile="$2" -o "$out/kubectl-$1" \
    -ldflags "-s -w -X $version.gitVersion=v1.$patch -X $version.gitMajor=1 -X $version.gitMinor=${1#1.}" .
}
build 1.36 go.mod
build 1.35 go.1.35.mod
