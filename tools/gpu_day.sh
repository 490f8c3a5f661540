#!/usr/bin/env bash
# A quarter of an hour with a GPU in one command: what is unverified runs there in the order of its value, each item within
# a budget, and every result is on the disk at once (tools/gpu_day).
# Usage: gpu_day.sh --pack DIR [--limit-mib N] [--from FOLDER]     builds (or takes FOLDER), and puts day.tar.xz and this
#                                                                  script into DIR: at most 42 MiB (45 MB) in all, and
#                                                                  64 MiB with the clone's files, which travel, too
#        DIR/gpu_day.sh --bundle DIR/day.tar.xz --out OUT [--seconds 540] [--resume day.jsonl] [--items alive,decode]
#                                                                  runs the items on the GPU's machine; OUT gets day.jsonl,
#                                                                  day.md, clocks.csv and logs.tar.xz
#        gpu_day.sh --rehearse --out OUT [--seconds N] ...         the same over the emulator, with bazel-bin (or what
#                                                                  SOMNUS_BIN names)
# The last thing on stdout is day.md. The exit status is zero when no item failed.
set -uo pipefail
begun=$(date +%s.%N)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pack='' from='' limit_mib='' bundle='' rehearse='' day=()
usage() { sed -n '4,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
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

# Builds, and makes $1 the folder that is packed.
make_kit() {
  # shellcheck source=env.sh
  source "$here/env.sh"
  # shellcheck source=bundle.sh
  source "$here/bundle.sh"
  cd "$SOMNUS_ROOT" || exit 1
  local targets
  mapfile -t targets < <(python3 tools/gpu_day/programs.py)
  targets+=(//worker:worker //coordinator:coordinator //tools:somnus //tools/bench:gpu_bench)
  has_nvcc || die "--pack needs nvcc in CUDA_HOME (by default /usr/local/cuda)"
  run_bazel build --config=cuda "${targets[@]}" || die "the build failed"
  bundle_binaries "$1" "${targets[@]}"
  git rev-parse HEAD >"$1/commit.txt"
  # shellcheck disable=SC2046  # one folder a line
  git ls-files $(python3 tools/gpu_day/programs.py --data) tools/bench/{shapes,peers} tools/gpu_day | xargs cp --parents -t "$1"
}

# How many MiB the pack may have: 42, and what the clone's files leave of the 64 that travel.
room_mib() {
  (cd "$here/.." && git ls-files -z --cached --others --exclude-standard | du -cb --files0-from=-) 2>/dev/null |
    awk '{ clone = $1 } END { left = 64 - int((clone + 1048575) / 1048576); print left < 42 ? left : 42 }'
}

pack_day() {
  local kit=$from limit=${limit_mib:-$(room_mib)} tmp size window
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
  if ((size > limit << 20)); then
    awk -v size="$size" -v limit="$limit" \
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

# Unpacks the bundle, or lays out a rehearsal, in the new folder $1.
lay_out() {
  if [[ -n $rehearse ]]; then
    python3 "$here/gpu_day/rehearsal.py" "$here/.." "${SOMNUS_BIN:-$here/../bazel-bin}" "$1"
    return
  fi
  # xz may be missing there; Python has it.
  python3 - "$bundle" "$1" <<'UNPACK'
import sys, tarfile
try:
    with tarfile.open(sys.argv[1], "r:xz") as archive:
        archive.extractall(sys.argv[2], **({"filter": "tar"} if hasattr(tarfile, "data_filter") else {}))
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error}")
UNPACK
}

# The first folder that has room for the programs: a full disk must not end the day.
kit=''
trap 'rm -rf "$kit"' EXIT
for folder in "${TMPDIR:-/tmp}" /tmp /var/tmp /dev/shm; do
  kit=$(mktemp -d -p "$folder" gpu_day.XXXXXX) && lay_out "$kit" && break
  rm -rf "$kit"
  kit=''
done
[[ -n $kit ]] || { echo "error: the programs cannot be put into any folder; TMPDIR names another" >&2; exit 1; }
export TMPDIR=$folder
if [[ -n $rehearse ]]; then
  PATH=$kit/stubs:$PATH
  day+=(--rehearse)
fi
python3 "$kit/tools/gpu_day/day.py" --root "$kit" --begun "$begun" "${day[@]}" &
# A signal to this script goes on to the day, which ends its item and its servers and completes its files first.
trap 'kill -TERM $!' TERM INT
wait $!
code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
exit $code
