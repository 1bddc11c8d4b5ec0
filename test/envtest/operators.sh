#!/bin/sh
# Runs the envtest suites of public operators, as they were released, on Setpoint
# and on a real kube-apiserver with etcd, and prints how many specs passed and how
# long each took.
#   operators.sh SETPOINT PEER [PROJECT...]
# SETPOINT is the program, PEER a folder with kube-apiserver, etcd and kubectl
# (test/differential/build.sh and test/kubectl/build.sh make them); - runs Setpoint
# alone. Without projects it is all that are listed below but for kro, whose suite
# takes long.
set -eu
setpoint=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") peer=$2
shift 2
[ $# -gt 0 ] || set -- trust-manager approver-policy cert-controller
# shellcheck source=both.sh
. "$(dirname "$0")/both.sh"

# suites PROJECT runs the suites of a project, each with the release of
# controller-runtime that the project has chosen.
suites() {
  case $1 in
    kro) # resources of several kinds as one, v0.24
      fetch github.com/kubernetes-sigs/kro@v0.9.4
      both test/integration/suites/core ;;
    trust-manager) # bundles of certificates, v0.25
      fetch github.com/cert-manager/trust-manager@v0.25.0
      both test/integration/bundle ;;
    approver-policy) # who may have which certificates, v0.25
      fetch github.com/cert-manager/approver-policy@v0.28.0
      CERT_MANAGER_CRDS=$(folder github.com/cert-manager/cert-manager)/deploy/crds
      export CERT_MANAGER_CRDS
      both pkg/internal/approver/manager pkg/internal/approver/manager/predicate pkg/internal/controllers/test ;;
    cert-controller) # certificates of webhooks, v0.23
      fetch github.com/open-policy-agent/cert-controller@v0.16.0
      both pkg/rotator ;;
    *)
      echo "no such project: $1" >&2
      exit 2 ;;
  esac
}

for project in "$@"; do
  suites "$project"
done
total
exit "$failed"
