#!/usr/bin/env bash
# From a bare Debian 12 machine to an answer: installs packages, builds, fetches SmolLM2-135M-Instruct, starts one
# coordinator and two workers, asks one question, and serves until Ctrl-C.
# Usage: tools/quickstart.sh [--once]     --once: stop after the answer
# PORT, ADMIN_PORT and GRPC_PORT choose other ports than 8000, 8001 and 50051. tools/env.sh lists the other variables.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
port=${PORT:-8000} admin_port=${ADMIN_PORT:-8001} grpc_port=${GRPC_PORT:-50051}
once=0
case ${1:-} in
  "") ;;
  --once) once=1 ;;
  -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "unknown argument '$1'; usage: tools/quickstart.sh [--once]" >&2; exit 2 ;;
esac

"$SOMNUS_ROOT/tools/setup.sh" packages model
# CUDA's kernels are a third of the build, and of no use on a machine without a GPU.
if [[ -z ${SOMNUS_CUDA:-} ]]; then has_gpu && SOMNUS_CUDA=1 || SOMNUS_CUDA=0; fi
[[ $SOMNUS_CUDA == 0 ]] || has_nvcc || say "a GPU but no $CUDA_HOME/bin/nvcc: the build is for the CPU alone"
say "building (a quarter to half an hour the first time on two cores)"
run_bazel build //coordinator //worker //tools:somnus
somnus=$SOMNUS_ROOT/bazel-bin/tools/somnus

server=
stop() {
  trap - EXIT INT TERM
  [[ -z $server ]] || { kill -TERM "$server" 2>/dev/null; wait "$server" || true; }
}
# A server in the background ignores the terminal's Ctrl-C, as a script's background jobs do: this script stops it.
trap 'stop' EXIT
trap 'stop; exit 0' INT TERM

say "starting one coordinator and two workers on port $port"
"$somnus" serve "$SOMNUS_MODEL" --workers=local:2 --served-model-name smollm2 --port "$port" --admin-port "$admin_port" \
  --grpc-port "$grpc_port" --control-port 0 </dev/null &
server=$!
for ((i = 0; i < 600; i++)); do
  kill -0 "$server" 2>/dev/null || { wait "$server" || true; server=; die "the server ended before it was ready"; }
  "$somnus" status --port "$port" --ready >/dev/null 2>&1 && break
  sleep 0.2
done
((i < 600)) || die "the server was not ready within two minutes"

question="Tell me the capital of France."
say "asking: $question"
"$somnus" chat --port "$port" --temperature 0 --max-tokens 64 "$question" </dev/null
((once)) && exit 0

cat >&2 <<TEXT
== serving on http://127.0.0.1:$port until Ctrl-C. In another terminal:
     bazel-bin/tools/somnus chat --port $port
     bazel-bin/tools/somnus status --port $port
     curl http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}]}'
TEXT
wait "$server" && code=0 || code=$?
server=
exit "$code"
