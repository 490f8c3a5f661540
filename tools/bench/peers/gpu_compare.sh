#!/usr/bin/env bash
# Somnus beside its peers on a GPU, in turns: nano-vllm's workload (workload.py) through each of them, attention kernels beside
# flashinfer's. Each round runs Somnus, then every peer, one at a time: each takes the GPU's whole memory.
# Usage: gpu_compare.sh --model DIR [--peers "transformers nano-vllm vllm vllm-server flashinfer"] [--rounds 3] [--out DIR]
#          [--server NAME=COMMAND]... [--python [PEER=]PATH]... [--binaries DIR] [--dummy] [--dry-run]
#          [--workload "FLAGS OF workload.py"] [-- FLAGS OF somnus serve]
#   --server    one more OpenAI-compatible server; {port} and {model} in COMMAND are filled in
#   --python    the Python that has PEER, or every peer (default: python3)
#   --binaries  a bundle of gpu_check.sh; otherwise bazel-bin (//coordinator //worker //tools:somnus //tools/bench/...)
#   --dummy     random weights for DIR's config.json; DIR needs its tokenizer too
#   --dry-run   prints the commands
# A peer that is not installed is named and left out. Prints one table with Somnus' ratio to each peer; all results and
# comparison.json are left in --out.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
complain() { echo "error: $*" >&2; exit 2; }

model='' peers='transformers nano-vllm vllm vllm-server flashinfer' rounds=3 out='' binaries='' dummy=0 dry=0 workload=() others=()
declare -A pythons=() servers=()
while (($#)); do
  case $1 in
    --dummy) dummy=1; shift; continue ;;
    --dry-run) dry=1; shift; continue ;;
    --) shift; break ;;
    --model | --peers | --rounds | --out | --server | --python | --binaries | --workload)
      (($# > 1)) || complain "$1 needs a value" ;;
    *) usage ;;
  esac
  case $1 in
    --model) model=$2 ;; --peers) peers=$2 ;; --rounds) rounds=$2 ;; --out) out=$2 ;; --workload) read -ra workload <<<"$2" ;;
    --binaries) binaries=$(cd "$2" 2>/dev/null && pwd) || complain "--binaries: there is no folder $2" ;;
    --python) if [[ $2 == *=* ]]; then pythons[${2%%=*}]=${2#*=}; else pythons[all]=$2; fi ;;
    --server) [[ $2 =~ ^[a-z0-9-]+= ]] || complain "--server: NAME=COMMAND is wanted, not '$2'"
      servers[${2%%=*}]=${2#*=} others+=("${2%%=*}") ;;
  esac
  shift 2
done
serve_flags=("$@")
[[ -n $model ]] || complain "--model is missing"
[[ -f $model/config.json ]] || complain "--model: $model has no config.json"
[[ $rounds =~ ^[1-9][0-9]*$ ]] || complain "--rounds: a number above 0 is wanted, not '$rounds'"
peers+=" ${others[*]}"
for peer in $peers; do
  case $peer in
    transformers | nano-vllm | vllm | vllm-server | flashinfer) ;;
    somnus) complain "--peers: somnus is always measured" ;;
    *) [[ -n ${servers[$peer]:-} ]] || complain "--peers: '$peer' is not one of transformers, nano-vllm, vllm, vllm-server, flashinfer" ;;
  esac
done
bin=${binaries:-$root/bazel-bin}
port=$(python3 "$here/free_port.py")
[[ -z $binaries ]] || export LD_LIBRARY_PATH=$binaries/lib:${CUDA_HOME:-/usr/local/cuda}/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
out=${out:-$(mktemp -d)}
((dry)) || mkdir -p "$out" || exit 1

python_of() { printf '%s' "${pythons[$1]:-${pythons[all]:-python3}}"; }
# run LOG COMMAND...: runs it with its output in LOG; with --dry-run only prints it.
run() {
  local log=$1
  shift
  if ((dry)); then printf '%q ' "$@"; echo; return 0; fi
  "$@" >"$log" 2>&1 </dev/null
}
skipped() { grep -h '^skipped: ' "$1" 2>/dev/null | tail -1; }

server=''
stop() {
  [[ -z $server ]] || { kill -TERM -- "-$server" 2>/dev/null; wait "$server" 2>/dev/null; }
  server=''
}
trap stop EXIT
# Ready by /health, or by /v1/models where a server has no /health.
ready() {
  case $(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/health") in
    200) return 0 ;;
    404) curl -sf -o /dev/null "http://127.0.0.1:$port/v1/models" ;;
    *) return 1 ;;
  esac
}
# make_workload FILE FLAGS...: the requests, under $out.
make_workload() {
  local file=$1
  shift
  run "$out/$file.log" python3 "$here/workload.py" --out "$out/$file" "$@" || { cat "$out/$file.log" >&2; exit 2; }
}
# start NAME LOG COMMAND...: a server in a process group of its own, so that stopping it stops its children.
start() {
  local name=$1 log=$2
  shift 2
  if ((dry)); then printf '%q ' "$@"; echo '&'; return 0; fi
  setsid "$@" </dev/null >"$log" 2>&1 &
  server=$!
  for ((i = 0; i < 12000; i++)); do
    ready && return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  echo "failed: $name did not start; see $log" >&2
  stop
  return 1
}

# serve NAME ROUND COMMAND...: the workload through a server, after a few requests that are not in it.
serve() {
  local name=$1 round=$2 bench=("$bin/tools/bench/serving_bench" --base-url "http://127.0.0.1:$port" --concurrency "$requests" --no-probe
    --temperature 0.6 --ignore-eos --timeout 3600)
  shift 2
  start "$name" "$out/$name.$round.server.log" "$@" || return 1
  run "$out/$name.$round.warmup.log" "${bench[@]}" --num-requests 8 --dataset "$out/warmup.jsonl" --in-order
  run "$out/$name.$round.log" "${bench[@]}" --num-requests "$requests" --dataset "$out/workload.jsonl" --in-order \
    --json "$out/$name.$round.json"
  local code=$?
  stop
  return $code
}

# measure NAME ROUND: leaves NAME.ROUND.json; a line "skipped: ..." in NAME.ROUND.log where the peer is not there.
measure() {
  local name=$1 round=$2 python dummy_flag=() load=()
  python=$(python_of "$name")
  ((dry)) || rm -f "$out/$name.$round.jsonl"  # to which lines are appended
  ((!dummy)) || { dummy_flag=(--dummy) load=(--load-format dummy); }
  case $name in
    somnus) serve somnus "$round" "$bin/tools/somnus" serve "$model" --device=cuda "${load[@]}" \
      --served-model-name bench --port $port --admin-port 0 --grpc-port 0 --control-port 0 --max-num-seqs "$requests" \
      --max-model-len 4096 "${serve_flags[@]}" ;;
    transformers | nano-vllm | vllm) run "$out/$name.$round.log" "$python" "$here/offline_peer.py" "$name" --model "$model" \
      "${dummy_flag[@]}" "${workload[@]}" --json "$out/$name.$round.json" ;;
    vllm-server)
      ((dry)) || "$python" -c 'import vllm' 2>/dev/null || { echo "skipped: vllm is not installed for $python" >"$out/$name.$round.log"; return 77; }
      serve vllm-server "$round" "$python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name bench \
        --host 127.0.0.1 --port $port --max-num-seqs "$requests" --max-model-len 4096 "${load[@]}" ;;
    somnus-kernels) run "$out/$name.$round.log" "$bin/tools/bench/gpu_bench" --parts=kernels --json-lines "$out/$name.$round.jsonl" ;;
    flashinfer) run "$out/$name.$round.log" "$python" "$here/flashinfer_kernels.py" --cases "$out/somnus-kernels.$round.jsonl" \
      --json-lines "$out/$name.$round.jsonl" ;;
    *) local command=${servers[$name]//\{port\}/$port}
      serve "$name" "$round" bash -c "exec ${command//\{model\}/$(printf '%q' "$model")}" ;;
  esac
}

((dry)) || nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | tee "$out/gpu.txt"
make_workload workload.jsonl "${workload[@]}"
make_workload warmup.jsonl "${workload[@]}" --num-requests 8 --input-len 16-64 --output-len 8-32 --seed 1
requests=256
if ((!dry)); then requests=$(wc -l <"$out/workload.jsonl"); fi
order=(somnus)
for peer in $peers; do
  if [[ $peer == flashinfer ]]; then order=(somnus-kernels flashinfer "${order[@]}"); else order+=("$peer"); fi
done
declare -A left_out=()
failed=0
for ((round = 1; round <= rounds; round++)); do
  for name in "${order[@]}"; do
    [[ -z ${left_out[$name]:-} ]] || continue
    echo "== round $round, $name" >&2
    measure "$name" "$round" && continue
    if reason=$(skipped "$out/$name.$round.log") && [[ -n $reason ]]; then
      echo "$reason"
      left_out[$name]=1
    else
      echo "failed: $name, round $round; see $out/$name.$round.log" >&2
      failed=1
    fi
  done
done
((dry)) && exit 0
python3 "$here/gpu_ratios.py" "$out" || failed=1
echo "results in $out"
exit $failed
