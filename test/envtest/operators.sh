#!/bin/sh
# Runs the envtest suites of public operators, as they were released, on Setpoint
# and on a real kube-apiserver with etcd, and prints how many specs passed and how
# long each took.
#   operators.sh SETPOINT PEER [PROJECT...]
# SETPOINT is the program, PEER a folder with kube-apiserver, etcd and kubectl
# (test/differential/build.sh and test/kubectl/build.sh make them). Projects are
# all that are listed below.
set -eu
setpoint=$1 peer=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- kro trust-manager cert-controller k8s-operator-libs
# shellcheck source=both.sh
. "$(dirname "$0")/both.sh"

# suites PROJECT runs the suites of a project, each with the release of
# controller-runtime that the project has chosen.
suites() {
  case $1 in
    kro) # resources of several kinds as one, v0.24
      of github.com/kubernetes-sigs/kro@v0.9.4 test/integration/suites/core ;;
    trust-manager) # bundles of certificates, v0.25
      of github.com/cert-manager/trust-manager@v0.25.0 test/integration/bundle ;;
    cert-controller) # certificates of webhooks, v0.23
      of github.com/open-policy-agent/cert-controller@v0.16.0 pkg/rotator ;;
    k8s-operator-libs) # drivers on nodes, v0.20
      of github.com/NVIDIA/k8s-operator-libs@v0.0.0-20250311214045-7d667fbaa7ac pkg/crdutil pkg/upgrade ;;
    *)
      echo "no such project: $1" >&2
      exit 2 ;;
  esac
}

# of MODULE@VERSION PACKAGE... runs suites of a module.
of() {
  echo "$1"
  fetch "$1"
  shift
  for package in "$@"; do
    both "$package"
  done
}

for project in "$@"; do
  suites "$project"
done
exit "$failed"
