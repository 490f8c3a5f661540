#!/usr/bin/env bash
# Makes what users install: a pip wheel, a relocatable tarball and a Debian package, in dist/. The same programs, sources and
# Debian packages of this machine give the same bytes, from any folder and at any time. Needs patchelf beside what tools/setup.sh
# installs; the result needs no compiler, no Bazel and, but for the Debian package, no library other than the C library of Debian 12
# or a newer one.
# Usage: tools/package.sh [--bin DIR] [--out DIR] [wheel|tarball|deb ...]      (all three when none is named)
#   --bin DIR   programs that are built already, laid out as in bazel-bin; else Bazel builds the programs (tools/env.sh)
#   --out DIR   where the artifacts go (default dist)
# SOURCE_DATE_EPOCH is the time of all files within (default: that of the last commit).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
bin="" out=$SOMNUS_ROOT/dist kinds=()
while (($#)); do
  case $1 in
    --bin) bin=$2; shift ;;
    --out) out=$2; shift ;;
    wheel | tarball | deb) kinds+=("$1") ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "unknown argument '$1': --bin DIR, --out DIR, wheel, tarball or deb" >&2; exit 2 ;;
  esac
  shift
done
((${#kinds[@]})) || kinds=(wheel tarball deb)
for program in patchelf strip protoc grpc_python_plugin dpkg-deb; do
  command -v "$program" >/dev/null || die "$program is missing: tools/setup.sh packages tests"
done
if [[ -z $bin ]]; then
  say "building"
  run_bazel build //coordinator //worker //tools:somnus //tools/bench:serving_bench
  bin=$SOMNUS_ROOT/bazel-bin
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$SOMNUS_ROOT" log -1 --format=%ct)}
exec python3 "$SOMNUS_ROOT/tools/package/make.py" "$bin" "$out" "${kinds[@]}"
