#!/usr/bin/env bash
# A quarter of an hour with a GPU in one command: what is unverified runs there in the order of its value, each item within
# a budget, and every result is on the disk at once (tools/gpu_day).
# Usage: gpu_day.sh --pack DIR [--limit-mib N] [--from FOLDER]     builds (or takes FOLDER), and puts day.tar.xz and this
#                                                                  script into DIR: at most 45 MiB in all
#        DIR/gpu_day.sh --bundle DIR/day.tar.xz --out OUT [--seconds 540] [--resume day.jsonl] [--items alive,decode]
#                                                                  runs the items on the GPU's machine; OUT gets day.jsonl,
#                                                                  day.md, clocks.csv and logs.tar.xz
#        gpu_day.sh --rehearse --out OUT [--seconds N] ...         the same over the emulator, with bazel-bin (or what
#                                                                  SOMNUS_BIN names)
# The last thing on stdout is day.md. The exit status is zero when no item failed.
set -uo pipefail
begun=$(date +%s.%N)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pack='' from='' limit_mib=45 bundle='' rehearse='' day=()
usage() { sed -n '4,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
while (($#)); do
  case $1 in
    --rehearse) rehearse=1; shift; continue ;;
    --pack | --from | --limit-mib | --bundle | --out | --seconds | --resume | --items) (($# > 1)) || usage ;;
    *) usage ;;
  esac
  case $1 in
    --pack) pack=$2 ;; --from) from=$2 ;; --limit-mib) limit_mib=$2 ;; --bundle) bundle=$2 ;;
    *) day+=("$1" "$2") ;;
  esac
  shift 2
done

targets=(//worker:worker //coordinator:coordinator //tools:somnus //tools/bench:gpu_bench //tests/cuda:gpu_tests
  //tests/cuda:{steady_state,graph_sleep,batch_invariance,runner,all_reduce,fused_norm,peer_processes}_gpu_test)

# Builds, and makes $1 the folder that is packed.
make_kit() {
  # shellcheck source=env.sh
  source "$here/env.sh"
  # shellcheck source=bundle.sh
  source "$here/bundle.sh"
  cd "$SOMNUS_ROOT" || exit 1
  has_nvcc || die "--pack needs nvcc in CUDA_HOME (by default /usr/local/cuda)"
  run_bazel build --config=cuda "${targets[@]}" || die "the build failed"
  bundle_binaries "$1" "${targets[@]}"
  git rev-parse HEAD >"$1/commit.txt"
  git ls-files tests/data/{gguf,tiny,variants} tools/bench/{shapes,peers} tools/gpu_day | xargs cp --parents -t "$1"
}

pack_day() {
  local kit=$from tmp size window
  tmp=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name as it is now
  trap "rm -rf '$tmp'" EXIT
  if [[ -z $kit ]]; then
    kit=$tmp/kit
    mkdir "$kit"
    (make_kit "$kit") || return 1
  fi
  # The programs hold the same kernels: a window over all of them finds these again.
  window=$(du -sm --apparent-size "$kit" | awk '{ print $1 < 511 ? $1 + 1 : 512 }')
  tar -C "$kit" --sort=name --owner=0 --group=0 -c . | xz --threads=1 --lzma2="preset=6,dict=${window}MiB" >"$tmp/day.tar.xz" || return 1
  cp "${BASH_SOURCE[0]}" "$tmp/gpu_day.sh"
  size=$(du -cb "$tmp/day.tar.xz" "$tmp/gpu_day.sh" | awk 'END { print $1 }')
  if ((size > limit_mib << 20)); then
    awk -v size="$size" -v limit="$limit_mib" \
      'BEGIN { printf "error: the pack has %.1f MiB, more than the %d that may travel (--limit-mib)\n", size / 1048576, limit }' >&2
    return 1
  fi
  mkdir -p "$pack" && mv "$tmp/day.tar.xz" "$tmp/gpu_day.sh" "$pack/" && chmod 755 "$pack/gpu_day.sh" || return 1
  awk -v size="$size" -v dir="$pack" 'BEGIN { printf "%s: %.1f MiB\n", dir, size / 1048576 }'
}

if [[ -n $pack ]]; then
  pack_day
  exit
fi
[[ -n $rehearse || -n $bundle ]] || usage
kit=$(mktemp -d)
trap 'rm -rf "$kit"' EXIT
if [[ -n $rehearse ]]; then
  root=$(cd "$here/.." && pwd)
  python3 "$here/gpu_day/rehearsal.py" "$root" "${SOMNUS_BIN:-$root/bazel-bin}" "$kit" || exit 1
  PATH=$kit/stubs:$PATH
  day+=(--rehearse)
else
  # xz may be missing there; Python has it.
  python3 - "$bundle" "$kit" <<'UNPACK' || exit 1
import sys, tarfile
with tarfile.open(sys.argv[1], "r:xz") as archive:
    archive.extractall(sys.argv[2], **({"filter": "tar"} if hasattr(tarfile, "data_filter") else {}))
UNPACK
fi
python3 "$kit/tools/gpu_day/day.py" --root "$kit" --begun "$begun" "${day[@]}" &
# A signal to this script goes on to the day, which ends its item and its servers and completes its files first.
trap 'kill -TERM $!' TERM INT
wait $!
code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
exit $code
