#!/bin/sh
# Runs a watch-create-patch-delete test with clients of other languages: the Python
# package kubernetes and the npm package @kubernetes/client-node. Each starts a
# control plane by itself, as their users do.
#   run.sh SETPOINT [python|node...]
# Packages are installed into a folder that goes with the run, from wherever pip
# and npm take them. A language that is not on this machine is said to be skipped.
set -eu
SETPOINT=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
export SETPOINT
shift
[ $# -gt 0 ] || set -- python node
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for language in "$@"; do
  case $language in
  python)
    command -v python3 >/dev/null || { echo "python: skipped, there is no python3"; continue; }
    python3 -m pip install --quiet --disable-pip-version-check --target "$work/python" kubernetes==34.1.0
    PYTHONPATH=$work/python python3 client.py
    ;;
  node)
    command -v npm >/dev/null || { echo "node: skipped, there is no npm"; continue; }
    mkdir "$work/node"
    cp client.mjs "$work/node/"
    (cd "$work/node" && npm install --silent --no-fund --no-audit --no-package-lock @kubernetes/client-node@1.4.0 && node client.mjs)
    ;;
  *)
    echo "$language: no such test" >&2
    exit 2
    ;;
  esac
done
