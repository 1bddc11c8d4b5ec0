# Runs suites of other people's modules on Setpoint and on a real kube-apiserver
# with etcd. A script sources this file after it has set
#   setpoint   the program
#   peer       a folder with kube-apiserver, etcd and kubectl; - runs Setpoint alone
# and ends with `total`, then with $failed, which is 1 once a suite has not passed
# on a side. What suites print is kept in the folder $LOGS if that is set.
failed=0
[ "$peer" = - ] || peer=$(cd "$peer" && pwd)
work=$(mktemp -d)
trap 'cd /; chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
assets=$("$setpoint" envtest)
logs=$work
if [ -n "${LOGS:-}" ]; then
  mkdir -p "$LOGS"
  logs=$(cd "$LOGS" && pwd)
fi
export KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=180s KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT=180s

# folder MODULE[@VERSION] is where a module lies, once it is there.
folder() { go mod download -json "$1" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p'; }

# fetch MODULE@VERSION goes to a copy of a module that can be written to, and says
# which it is.
fetch() {
  echo "$1"
  cd "$work"
  from=$(folder "$1")
  if [ -d module ]; then
    chmod -R u+w module
    rm -rf module
  fi
  cp -R "$from" module
  chmod -R u+w module
  cd module
}

# both PACKAGE... builds suites and runs each on both sides.
both() {
  for suite in "$@"; do
    go test -c -o "$work/suite.test" "./$suite"
    run setpoint "$assets" "$suite"
    [ "$peer" = - ] || run real "$peer" "$suite"
  done
}

# run SIDE ASSETS PACKAGE runs the suite that was built, and prints what came of
# it. A spec of Ginkgo's that fails is tried up to three times, on both sides.
run() {
  log=$logs/$(echo "$3" | tr / .).$1.log
  set -- "$@" -test.timeout 30m -test.v
  if "$work/suite.test" -help 2>&1 | grep -q ginkgo.flake-attempts; then
    set -- "$@" -ginkgo.no-color -ginkgo.flake-attempts=3
  fi
  side=$1 bin=$2 package=$3
  shift 3
  begun=$(date +%s%N)
  (cd "$package" && KUBEBUILDER_ASSETS=$bin "$work/suite.test" "$@") >"$log" 2>&1 || failed=1
  took=$((($(date +%s%N) - begun) / 1000000))
  came=$(outcome "$log")
  printf '%-36s %-9s %8d ms  %s\n' "$package" "$side" "$took" "$came"
  echo "$side $took $came" >>"$work/all"
  grep -E '\[(FAIL|FAILED)\]|^ *--- FAIL' "$log" | sort -u || true
}

# outcome LOG is how many specs passed and failed, or tests where there are no specs.
outcome() {
  specs=$(sed -n 's/^.*-- \([0-9]* Passed | [0-9]* Failed.*\)$/\1/p' "$1")
  if [ -n "$specs" ]; then
    echo "$specs"
  else
    echo "$(grep -c -- '--- PASS' "$1") Passed | $(grep -c -- '--- FAIL' "$1") Failed | $(grep -c -- '--- SKIP' "$1") Skipped"
  fi
}

# total prints what came of all suites on each side.
total() {
  awk '{
    took[$1] += $2
    for (i = 3; i < NF; i++) if ($(i + 1) == "Passed") passed[$1] += $i; else if ($(i + 1) == "Failed") failed[$1] += $i
  }
  END { for (side in took) printf "%-36s %-9s %8d ms  %d Passed | %d Failed\n", "all", side, took[side], passed[side], failed[side] }' "$work/all" | sort -r
}
