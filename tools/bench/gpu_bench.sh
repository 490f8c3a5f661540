#!/usr/bin/env bash
# Measures a GPU and Somnus on it: copy and bus ceilings, each op beside them, decode and prefill of three model shapes with
# random weights, sleep and wake, loading from a file, and nano-vllm's workload, served (256 requests of 100 to 1024 tokens in
# and out, seed 0).
# Usage: gpu_bench.sh [--binaries DIR] [--out DIR] [--shapes "qwen3-0.6b qwen3-8b llama3-70b"] [--tokenizer DIR]
#   --binaries   a bundle of gpu_check.sh; otherwise bazel-bin (bazel build --config=cuda //tools/bench:gpu_bench ...)
#   --tokenizer  a directory with tokenizer.json whose config.json is served with random weights; without it nothing is served
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
binaries='' out='' shapes='qwen3-0.6b qwen3-8b llama3-70b' tokenizer=''
while (($#)); do
  case $1 in
    --binaries) binaries=$(cd "$2" && pwd) ;; --out) out=$2 ;; --shapes) shapes=$2 ;; --tokenizer) tokenizer=$2 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
  shift 2
done
bin=${binaries:-$root/bazel-bin} data=${binaries:-$root}
out=${out:-$(mktemp -d)}
mkdir -p "$out"
[[ -z $binaries ]] || export LD_LIBRARY_PATH=$binaries/lib:${CUDA_HOME:-/usr/local/cuda}/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
SOMNUS_LIBRARY_PATH=$(python3 "$data/tools/gpu_day/library_path.py")
export SOMNUS_LIBRARY_PATH
nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/gpu.txt" || exit 1

# bench NAME FLAGS...: leaves NAME.txt and NAME.jsonl, to which each row is added as soon as it is measured.
bench() {
  local name=$1
  shift
  rm -f "$out/$name.jsonl"
  "$bin/tools/bench/gpu_bench" --json-lines "$out/$name.jsonl" "$@" | tee "$out/$name.txt" || echo "failed: gpu_bench $*" >&2
}
bench kernels --parts=kernels
for shape in $shapes; do
  # A 70B model does not fit every GPU: then the failure is the result.
  bench "$shape" --parts=model,sleep,load --model "$data/tools/bench/shapes/$shape"
  # What the promise of the same bits in any batch costs in speed.
  bench "$shape-invariant" --parts=model --batch-invariant --model "$data/tools/bench/shapes/$shape"
done

if [[ -n $tokenizer ]]; then
  port=$(python3 "$data/tools/bench/peers/free_port.py")
  "$bin/tools/somnus" serve "$tokenizer" --device=cuda --load-format=dummy --served-model-name bench --port "$port" \
    --admin-port 0 --grpc-port 0 --control-port 0 --max-num-seqs 256 --max-num-batched-tokens 8192 --max-model-len 4096 \
    >"$out/serve.log" 2>&1 &
  server=$!
  trap 'kill -TERM $server 2>/dev/null; wait $server' EXIT
  for ((i = 0; i < 3000; i++)); do
    curl -sf -o /dev/null "http://127.0.0.1:$port/health" && break
    kill -0 $server 2>/dev/null || { tail -3 "$out/serve.log" >&2; exit 1; }
    sleep 0.1
  done
  python3 "$data/tools/bench/peers/workload.py" --out "$out/workload.jsonl" || exit 1
  "$bin/tools/bench/serving_bench" --base-url "http://127.0.0.1:$port" --concurrency 256 --num-requests 256 --ignore-eos \
    --temperature 0.6 --dataset "$out/workload.jsonl" --in-order --json "$out/serving.json" | tee "$out/serving.txt"
fi
echo "results in $out"
