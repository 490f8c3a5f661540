#!/usr/bin/env bash
# Somnus beside other servers, on the same weights and the same machine, in turns: all servers run at once, each round
# measures every load on one server after the other, and the machine's memory speed is read around each sample.
# Usage: serve_compare.sh --model DIR_OR_GGUF [--llama-server BINARY --gguf FILE] [--vllm BINARY --hf DIR]
#          [--rounds 5] [--out DIR] [--loads "C:IN:OUT ..."] [--max-model-len 4096] [-- FLAGS OF somnus serve]
# --max-model-len is vLLM's; a slot of llama-server has 2,560 tokens.
# Prints the median of the rounds' ratios (Somnus over each peer). A pair is dropped, and counted, when the distance
# between the two cores (ping-pong) changed class within it.
# Build the binaries first: bazel build //coordinator //worker //tools:somnus //tools/bench:serving_bench
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${SOMNUS_BIN:-$here/../../../bazel-bin}
model='' llama='' gguf='' vllm='' hf='' rounds=5 out='' loads="1:64:128 8:64:128 16:64:128 32:64:128 8:512:64"
max_model_len=4096
while (($#)); do
  case $1 in
    --model) model=$2 ;; --llama-server) llama=$2 ;; --gguf) gguf=$2 ;; --vllm) vllm=$2 ;; --hf) hf=$2 ;;
    --rounds) rounds=$2 ;; --out) out=$2 ;; --loads) loads=$2 ;; --max-model-len) max_model_len=$2 ;;
    --) shift; break ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
  shift 2
done
[[ -n $model ]] || { echo "error: --model is missing" >&2; exit 2; }
serve_flags=("$@")
out=${out:-$(mktemp -d)}
mkdir -p "$out"
cpus=$(nproc)
servers=(somnus)
[[ -z $llama ]] || servers+=(llama-server)
[[ -z $vllm ]] || servers+=(vllm)

# start NAME PORT LOG: the server in a process group of its own, so that stopping it stops its children.
start() {
  local port=$2
  case $1 in
    somnus) exec setsid "$bin/tools/somnus" serve "$model" --port "$port" --admin-port 0 --grpc-port 0 --control-port 0 \
      --served-model-name bench "${serve_flags[@]}" ;;
    llama-server) exec setsid "$llama" -m "$gguf" --alias bench -t "$cpus" -c $((32 * 2560)) -np 32 --port "$port" \
      --host 127.0.0.1 --no-webui ;;
    vllm) VLLM_CPU_KVCACHE_SPACE=4 VLLM_CPU_OMP_THREADS_BIND=0-$((cpus - 1)) VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
      exec setsid "$vllm" serve "$hf" --served-model-name bench --dtype bfloat16 --host 127.0.0.1 --port "$port" \
      --max-model-len "$max_model_len" ;;
  esac </dev/null >"$3" 2>&1 &
  groups+=($!)
  for ((i = 0; i < 3000; i++)); do
    curl -sf -o /dev/null "http://127.0.0.1:$port/health" && return
    kill -0 "${groups[-1]}" 2>/dev/null || break
    sleep 0.1
  done
  echo "error: $1 did not start; see $3" >&2
  exit 1
}
stop() {
  for group in "${groups[@]}"; do kill -TERM -- "-$group" 2>/dev/null || true; done
  wait "${groups[@]}" 2>/dev/null || true
}
groups=()
trap stop EXIT

# All servers run at once, so that the turns are seconds apart: a core's neighbours change within a minute. The
# processor time that each takes while it waits for its turn is printed.
ports=()
for index in "${!servers[@]}"; do
  ports+=("$(python3 "$here/free_port.py")")
  start "${servers[index]}" "${ports[index]}" "$out/${servers[index]}.log"
done
used() { ps -eo pgid=,cputimes= | awk -v group="$1" '$1 == group { sum += $2 } END { print sum + 0 }'; }
before=() line=
for group in "${groups[@]}"; do before+=("$(used "$group")"); done
sleep 10
for index in "${!servers[@]}"; do line+=" ${servers[index]} $(($(used "${groups[index]}") - before[index])) s,"; done
echo "== processor time taken by ten seconds of waiting:${line%,}" >&2
for ((round = 1; round <= rounds; round++)); do
  for load in $loads; do
    IFS=: read -r concurrency input output <<<"$load"
    requests=$((concurrency * 2 > 6 ? concurrency * 2 : 6))
    for index in "${!servers[@]}"; do
      name=${servers[index]}
      echo "== round $round, $name, concurrency $concurrency, $input in, $output out" >&2
      "$bin/tools/bench/serving_bench" --base-url "http://127.0.0.1:${ports[index]}" --concurrency "$concurrency" \
        --num-requests "$requests" --warmup "$concurrency" --input-len "$input" --output-len "$output" --seed "$round" \
        --json "$out/$name.$round.$concurrency.$input.$output.json" >"$out/$name.$round.$concurrency.$input.$output.txt" ||
        echo "== some requests failed; see $out" >&2
    done
  done
done
python3 "$here/serve_ratios.py" "$out"
