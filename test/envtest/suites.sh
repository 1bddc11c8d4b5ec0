#!/bin/sh
# Runs controller-runtime's own suites on Setpoint and on a real kube-apiserver
# with etcd, and prints how many specs passed and how long each took.
#   suites.sh SETPOINT PEER [RELEASE [PACKAGE...]]
# SETPOINT is the program, PEER a folder with kube-apiserver, etcd and kubectl
# (test/differential/build.sh and test/kubectl/build.sh make them); - runs Setpoint
# alone. Without a release it is the one of go.mod; packages are all that start a
# control plane.
set -eu
setpoint=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") peer=$2 here=$(dirname "$0")
shift 2
release=${1:-$(cd "$here" && go list -m -f '{{.Version}}' sigs.k8s.io/controller-runtime)}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- pkg/builder pkg/cache pkg/client pkg/cluster pkg/controller pkg/controller/controllerutil pkg/envtest \
  pkg/handler pkg/internal/controller pkg/internal/recorder pkg/manager pkg/metrics/filters pkg/source pkg/webhook
# shellcheck source=both.sh
. "$here/both.sh"
fetch "sigs.k8s.io/controller-runtime@$release"
both "$@"
total
exit "$failed"
