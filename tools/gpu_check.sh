#!/usr/bin/env bash
# Runs on a GPU everything that tests run in the emulator, and prints a table: each suite of gpu_tests, the tests that have a
# process to themselves, the smallest cases of each kernel again under compute-sanitizer, and, with a model, its greedy text
# on the GPU beside the CPU's.
# Usage: gpu_check.sh [--model DIR_OR_GGUF] [--dtype TYPE] [--seconds PER_TEST] [--jobs TESTS_AT_ONCE] [--logs DIR]
#          [--no-sanitizer | --sanitizer-tools "memcheck racecheck synccheck"]           builds, then runs
#        gpu_check.sh --bundle DIR         only builds, and puts what a machine without the toolchain needs into DIR:
#                                          binaries, their libraries (not CUDA's), test data, shapes, the GPU's scripts
#        DIR/gpu_check.sh --binaries DIR   runs what was bundled (and --model ... as above)
# The last line is "N passed, N failed"; the exit status is non-zero when one failed or none ran.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle='' binaries='' model='' dtype=bfloat16 seconds=300 jobs=1 logs='' tools='memcheck racecheck synccheck'
while (($#)); do
  case $1 in
    --bundle) bundle=$2; shift ;; --binaries) binaries=$(cd "$2" && pwd) || exit 2; shift ;; --model) model=$2; shift ;;
    --seconds) seconds=$2; shift ;; --jobs) jobs=$2; shift ;; --dtype) dtype=$2; shift ;; --no-sanitizer) tools='' ;;
    --sanitizer-tools) tools=$2; shift ;; --logs) mkdir -p "$2" && logs=$(cd "$2" && pwd) || exit 2; shift ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
  shift
done

programs=(//worker:worker //coordinator:coordinator //tools:somnus //tools/bench:gpu_bench //tools/bench:decode_bench
  //tools/bench:serving_bench)

# Builds, and makes $1 a folder that runs elsewhere.
make_bundle() {
  local dir=$1 tests
  # shellcheck source=env.sh
  source "$here/env.sh"
  cd "$SOMNUS_ROOT" || exit 1
  # Manual targets are built only by name.
  mapfile -t tests < <(run_bazel query 'attr(tags, "\bgpu\b", //tests/...)' 2>/dev/null)
  ((${#tests[@]})) || die "no GPU tests were found"
  run_bazel build --config=cuda "${tests[@]}" "${programs[@]}" || die "the build failed"
  # shellcheck source=bundle.sh
  source "$here/bundle.sh"
  bundle_binaries "$dir" "${tests[@]}" "${programs[@]}"
  dir=$(cd "$dir" && pwd)
  # shellcheck disable=SC2046  # one folder a line
  cp -r $(python3 tools/gpu_day/programs.py --data) --parents -t "$dir"
  cp -r --parents tools/bench/shapes tools/bench/peers tools/bench/gpu_bench.sh tools/gpu_day/library_path.py -t "$dir"
  cp "${BASH_SOURCE[0]}" "$dir/gpu_check.sh"
  printf '%s\n' "${tests[@]}" | sed 's,//,,; s,:,/,' >"$dir/gpu_tests.txt"
  git rev-parse HEAD >"$dir/commit.txt"
  du -sh "$dir" >&2
}

if [[ -n $bundle ]]; then
  make_bundle "$bundle"
  exit
fi
if [[ -z $binaries ]]; then
  binaries=$(mktemp -d)
  trap 'rm -rf "$binaries"' EXIT
  (make_bundle "$binaries") || exit 1
fi
cd "$binaries" || exit 2
cuda=${CUDA_HOME:-/usr/local/cuda}
export LD_LIBRARY_PATH=$binaries/lib:$cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} TEST_TMPDIR=${TMPDIR:-/tmp}
SOMNUS_LIBRARY_PATH=$(python3 tools/gpu_day/library_path.py)
export SOMNUS_LIBRARY_PATH
echo "commit $(cat commit.txt)"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || { echo "error: there is no GPU here" >&2; exit 1; }

logs=${logs:-$(mktemp -d)}
: >"$logs/verdicts.txt"
# check NAME COMMAND...: runs it under the time limit, prints a row and adds it to verdicts.txt.
check() {
  local name=$1 log start code verdict row
  shift
  log=$logs/${name//[\/ ]/_}.log
  start=$(date +%s.%N)
  timeout -k 10 "$seconds" "$@" >"$log" 2>&1 </dev/null
  code=$?
  case $code in 0) verdict=ok ;; 124 | 137) verdict=TIMEOUT ;; *) verdict=FAIL ;; esac
  # A test that skipped everything has shown nothing.
  [[ $verdict == ok ]] && grep -q 'SKIPPED' "$log" && ! grep -q '\[       OK' "$log" && verdict=SKIPPED
  echo "$verdict" >>"$logs/verdicts.txt"
  row=$(printf '%-8s %8.1f s  %s' "$verdict" "$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')" "$name")
  [[ $verdict == ok ]] || row+=$'\n'$(grep -aE 'Failure|FAILED|error|Error|========= ' "$log" | head -15 | sed 's/^/    /')
  echo "$row"  # at once, since others print theirs
}
# start NAME COMMAND...: check, beside the others, once one of the --jobs is free.
start() {
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  check "$@" &
}

# A process for each suite: a suite that hangs, or leaves CUDA with an error, ends alone.
together=tests/cuda/gpu_tests
while read -r suite; do start "gpu_tests ${suite%.}" "./$together" --gtest_filter="$suite*"; done \
  < <("./$together" --gtest_list_tests | sed -n 's/^\([^ ]*\.\)\( .*\)*$/\1/p')
wait
# Kernels that wait for each other keep the device from the kernels of other processes, and some tests count its memory.
while read -r test; do check "$test" "./$test"; done < <(grep -vx "$together" gpu_tests.txt)
sanitize=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
if [[ -n $tools && -x $sanitize ]]; then
  # compute-sanitizer takes a hundred times as long, and runs kernels one by one: ranks with kernels that wait for each other would hang.
  for tool in $tools; do
    # Errors that calls of CUDA return are the tests' affair: tests make some calls fail.
    quiet=$([[ $tool != memcheck ]] || echo --report-api-errors=no)
    # shellcheck disable=SC2086  # empty, or one word
    start "$tool, small cases" "$sanitize" --tool "$tool" $quiet --error-exitcode 9 "./$together" --gtest_filter='*Small*'
  done
  wait
fi

# text DEVICE: prints the served model's greedy texts, one per line.
text() {
  local port prompt
  port=$(python3 tools/bench/peers/free_port.py)
  ./tools/somnus serve "$model" --device="$1" --port "$port" --admin-port 0 --grpc-port 0 --control-port 0 \
    --dtype "$dtype" --dequantize --served-model-name check >"$logs/serve.$1.log" 2>&1 &
  local server=$!
  for ((i = 0; i < 600; i++)); do
    curl -sf -o /dev/null "http://127.0.0.1:$port/health" && break
    kill -0 $server 2>/dev/null || { tail -3 "$logs/serve.$1.log" >&2; return 1; }
    sleep 0.1
  done
  for prompt in 'The capital of France is' 'Once upon a time' 'def fibonacci(n):' 'Water boils at' '1, 1, 2, 3, 5, 8,'; do
    curl -sf "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' \
      -d "{\"model\": \"check\", \"prompt\": \"$prompt\", \"max_tokens\": 64, \"temperature\": 0}" |
      python3 -c 'import json, sys; print(repr(json.load(sys.stdin)["choices"][0]["text"]))' || break
  done
  kill -TERM $server && wait $server
}
if [[ -n $model ]]; then
  text cpu >"$logs/cpu.txt" && text cuda >"$logs/cuda.txt"
  # Where two logits tie within bf16 the texts may differ: a person looks at the difference.
  check "greedy text, GPU and CPU" diff "$logs/cpu.txt" "$logs/cuda.txt"
  diff "$logs/cpu.txt" "$logs/cuda.txt" | cut -c1-300
fi
echo "logs in $logs"
passed=$(grep -cx ok "$logs/verdicts.txt") failed=$(grep -cvx ok "$logs/verdicts.txt")
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
