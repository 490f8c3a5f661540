#!/usr/bin/env bash
# Installs client programs and gateways in a Python environment of their own, and drives each against a served model.
# Not part of the default test run. Usage: tests/clients/run.sh [FILE.py ...]  (all drives when none is named)
# Binaries come from bazel-bin, or from the folder that SOMNUS_BIN names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../../tools/env.sh"

venv=$SOMNUS_CACHE/clients-venv
# The versions with which the drives were last seen to pass; $here/requirements.txt names one package a line.
if [[ ! -x $venv/bin/pip ]]; then
  mkdir -p "$SOMNUS_CACHE"
  python3 -m venv --clear "$venv" || die "python3 -m venv failed (package python3-venv)"
fi
"$venv/bin/pip" install -q -r "$here/requirements.txt" </dev/null >&2 || die "could not install the clients from PyPI: is there a network?"

drives=("$@")
((${#drives[@]})) || drives=("$here"/*_drive.py "$here/../proto/gateway_wire_test.py")
exec "$venv/bin/python" "$here/../run_suites.py" "${drives[@]}"
