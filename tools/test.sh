#!/usr/bin/env bash
# Sets up what the tests need, builds everything, runs all tests, and prints "N passed, N failed" as its last line.
# Exits non-zero when a test failed, when something did not build, or when no test ran.
# Usage: tools/test.sh [BAZEL TARGETS]     (//... and the Python suites when none is named)
#   tools/test.sh --config=asan //...      the unit tests under AddressSanitizer and UBSan (--config=tsan: ThreadSanitizer)
# SOMNUS_TEST_ATTEMPTS=2 runs a failed case once more, and names it as flaky where it passes then (default 1).
# SOMNUS_TEST_PATTERN=TEXT runs only Python cases whose name contains TEXT. tools/env.sh lists the other variables.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$SOMNUS_ROOT" || exit 1
# The quickstart that a suite runs must see the same value, or it would build everything again.
export SOMNUS_CUDA=${SOMNUS_CUDA:-1}
[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
cases=$results/cases.tsv
attempts=${SOMNUS_TEST_ATTEMPTS:-1}

tools/setup.sh packages || { printf 'FAIL\tsetup packages\n' >>"$cases"; python3 tests/report.py "$cases"; exit 1; }

say "bazel test ${*:-//...}"
run_bazel test --keep_going --flaky_test_attempts="$attempts" --build_event_json_file="$results/events.json" "${@:-//...}" >&2
bazel_code=$?
python3 tests/report.py --bazel "$results/events.json" "$bazel_code" >>"$cases"

if (($# == 0)); then
  # The set-up's own failures show as the failures of the cases that need it.
  tools/setup.sh model tests
  say "format"
  if git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs -r clang-format --dry-run -Werror >&2; then result=PASS; else result=FAIL; fi
  printf '%s\tclang-format\n' "$result" >>"$cases"
  say "Python suites"
  python="$SOMNUS_VENV/bin/python"
  [[ -x $python ]] || python=python3
  SOMNUS_MODEL=$SOMNUS_MODEL "$python" tests/run_suites.py --jobs "$(($(nproc) < 4 ? $(nproc) + 1 : 4))" --attempts "$attempts" --results "$cases" ${SOMNUS_TEST_PATTERN:+-k "$SOMNUS_TEST_PATTERN"} >&2
fi
python3 tests/report.py "$cases"
