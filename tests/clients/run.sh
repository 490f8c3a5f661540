#!/usr/bin/env bash
# Drives the server with client libraries and gateways, as PyPI has them: one line a case, then "N passed, N failed". Not part of
# the default test run. Makes the Python environment of requirements.txt, and that of NAME.txt for NAME_drive.py, in
# $SOMNUS_CACHE/clients. Programs come from bazel-bin, or from the folder that SOMNUS_BIN names.
# Usage: tests/clients/run.sh [-k TEXT] [FILE_drive.py ...]   only cases whose name contains TEXT; all files when none is named
#        tests/clients/run.sh samples [OPTIONS]               tests/structured/sample_schemas.py
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/env.sh"
here=$SOMNUS_ROOT/tests/clients
# Libraries that would ask the internet for prices, or send statistics.
export LITELLM_LOCAL_MODEL_COST_MAP=True OPENAI_AGENTS_DISABLE_TRACING=1 LANGSMITH_TRACING=false
export SOMNUS_MODEL

# Prints the Python of the environment that has the packages of a file, and makes the environment when the file is new.
python_of() {
  local requirements=$1 venv
  venv=$SOMNUS_CACHE/clients/$(sha256sum "$requirements" | cut -c1-16)
  if [[ ! -e $venv/made ]]; then
    say "installing the packages of $requirements into $venv"
    python3 -m venv --clear "$venv" >&2 && "$venv/bin/pip" install -q -r "$requirements" </dev/null >&2 &&
      touch "$venv/made" || die "cannot install $requirements"
  fi
  printf '%s\n' "$venv/bin/python"
}

common=$(python_of "$here/requirements.txt") || exit 1
if [[ ${1:-} == samples ]]; then
  exec "$common" "$SOMNUS_ROOT/tests/structured/sample_schemas.py" "${@:2}"
fi
pattern=()
[[ ${1:-} != -k ]] || { pattern=(-k "$2"); shift 2; }
(($# > 0)) || set -- "$here"/*_drive.py "$here/../proto/gateway_wire_test.py"
results=$(mktemp)
trap 'rm -f "$results"' EXIT
shared=()
for file in "$@"; do
  own=$here/$(basename "${file%_drive.py}").txt
  [[ $file != */gateway_wire_test.py ]] || own=$here/smg.txt
  if [[ ! -e $own ]]; then
    shared+=("$file")
    continue
  fi
  python=$(python_of "$own") || exit 1
  "$python" "$SOMNUS_ROOT/tests/run_suites.py" --results "$results" "${pattern[@]}" "$file"
done
((${#shared[@]} == 0)) ||
  "$common" "$SOMNUS_ROOT/tests/run_suites.py" --results "$results" "${pattern[@]}" "${shared[@]}"
python3 "$SOMNUS_ROOT/tests/report.py" "$results"
