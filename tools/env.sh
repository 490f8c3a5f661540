# shellcheck shell=bash disable=SC2034
# Sourced by the scripts of this folder: where things are, and how Bazel is called.
#   SOMNUS_CACHE       downloads and the Python environment of the tests (default ~/.cache/somnus)
#   SOMNUS_DISK_CACHE  a Bazel disk cache outside the clone: a folder, or "off" (default $SOMNUS_CACHE/bazel where
#                      that can be written; it only saves time)
#   SOMNUS_DISK_CACHE_GIB  how large it may be; what was not used for longest is removed first (default 20; one build of
#                      everything takes 5)
#   SOMNUS_CUDA        1: build for GPUs too, 0: not (default 1; needs nvcc either way; quickstart.sh: 1 where a GPU is)
#   SOMNUS_BAZEL_STARTUP, SOMNUS_BAZEL_FLAGS   further Bazel options (before / after the command)

SOMNUS_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
# Exported: Bazel looks in it for the sources of libraries that Debian does not have.
export SOMNUS_CACHE=${SOMNUS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/somnus}
SOMNUS_VENV=$SOMNUS_CACHE/venv
SOMNUS_HIP=$SOMNUS_CACHE/hip
SOMNUS_PROMETHEUS=$SOMNUS_CACHE/prometheus
# The version and the hash also stand in WORKSPACE (tests/tools/docs_test.py compares the two).
SOMNUS_XGRAMMAR_VERSION=0.2.9
SOMNUS_XGRAMMAR_SHA256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90
SOMNUS_XGRAMMAR=$SOMNUS_CACHE/sources/xgrammar-$SOMNUS_XGRAMMAR_VERSION.tar.gz
SOMNUS_MODEL=$SOMNUS_CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Prints the disk cache's folder for this machine's toolchain, or nothing. Bazel does not hash system headers, so
# their versions are part of the folder's name: an upgraded library never meets objects built against the old one.
disk_cache() {
  local dir=${SOMNUS_DISK_CACHE:-$SOMNUS_CACHE/bazel} key
  [[ $dir != off ]] || return 0
  key=$({ g++ --version; dpkg-query -W -f '${Package} ${Version}\n' '*-dev' 2>/dev/null; } | sha256sum | cut -c1-16)
  mkdir -p "$dir/$key" 2>/dev/null && [[ -w $dir/$key ]] && printf '%s\n' "$dir/$key"
  return 0
}

has_nvcc() { [[ -x $CUDA_HOME/bin/nvcc ]]; }
# Whether this machine has an NVIDIA GPU (/dev/dxg: under Windows' Linux).
has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]; }

# How many compilers may run at once: one per CPU, but no more than there are GiB of free memory.
build_jobs() {
  local cpus gib
  cpus=$(nproc) gib=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
  echo $((gib < 1 ? 1 : gib < cpus ? gib : cpus))
}

# run_bazel COMMAND ARGS...: runs Bazel in the repository, with the disk cache where there is one, and with CUDA where
# nvcc is installed unless SOMNUS_CUDA=0 (the binaries run on a machine without a GPU too). What build and test write
# is shown only when they fail (build_progress.py).
run_bazel() {
  local command=$1 cache flags=() quietly=()
  shift
  cache=$(disk_cache)
  case $command in
    build | test | run)
      flags+=("--jobs=$(build_jobs)")
      if [[ -n $cache ]]; then
        flags+=("--disk_cache=$cache")
        "$SOMNUS_ROOT/tools/trim_cache.py" "$(dirname "$cache")" "${SOMNUS_DISK_CACHE_GIB:-20}"
      fi
      [[ ${SOMNUS_CUDA:-1} == 0 ]] || ! has_nvcc || flags+=(--config=cuda)
      ;;
  esac
  case $command in build | test) quietly=("$SOMNUS_ROOT/tools/build_progress.py") ;; esac
  [[ $command != test ]] || flags+=(--test_summary=terse --local_test_jobs=2)
  # shellcheck disable=SC2086  # several options in one variable are meant to split
  (cd "$SOMNUS_ROOT" && "${quietly[@]}" bazel --host_jvm_args=-Xmx1g ${SOMNUS_BAZEL_STARTUP:-} "$command" "${flags[@]}" \
    ${SOMNUS_BAZEL_FLAGS:-} "$@" </dev/null)
}
