#!/bin/sh
# Runs controller-runtime's own suites on Setpoint and on a real kube-apiserver
# with etcd, and prints how many specs passed and how long each took.
#   suites.sh SETPOINT PEER [PACKAGE...]
# SETPOINT is the program, PEER a folder with kube-apiserver, etcd and kubectl
# (test/differential/build.sh and test/kubectl/build.sh make them). The release of
# controller-runtime is that of go.mod; packages are all that start a control
# plane. A spec that fails is tried up to three times, on both sides.
set -eu
setpoint=$1 peer=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- pkg/builder pkg/cache pkg/client pkg/cluster pkg/controller pkg/controller/controllerutil pkg/envtest \
  pkg/handler pkg/internal/controller pkg/internal/recorder pkg/manager pkg/metrics/filters pkg/source pkg/webhook
cd "$(dirname "$0")"
module=$(go list -m -f '{{.Dir}}' sigs.k8s.io/controller-runtime)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cp -R "$module" "$work/module"
chmod -R u+w "$work/module"
cd "$work/module"
for package in "$@"; do
  mkdir -p "$work/bin/$package"
  go test -c -o "$work/bin/$package/suite.test" "./$package"
done

# run SIDE ASSETS PACKAGE
run() {
  log="$work/$1.log"
  begun=$(date +%s%N)
  (cd "$3" && KUBEBUILDER_ASSETS=$2 "$work/bin/$3/suite.test" -test.timeout 30m -ginkgo.no-color -ginkgo.flake-attempts=3) >"$log" 2>&1 || failed=1
  took=$((($(date +%s%N) - begun) / 1000000))
  outcome=$(sed -n 's/^.*-- \([0-9]* Passed | [0-9]* Failed.*\)$/\1/p' "$log")
  printf '%-32s %-9s %8d ms  %s\n' "$3" "$1" "$took" "${outcome:-no outcome}"
  case $outcome in
    *' 0 Failed'*) ;;
    *) grep -E '\[(FAIL|FAILED)\]' "$log" | sort -u || true ;;
  esac
}
export KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=180s KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT=180s
assets=$("$setpoint" envtest)
failed=0
for package in "$@"; do
  run setpoint "$assets" "$package"
  run real "$peer" "$package"
done
exit "$failed"
