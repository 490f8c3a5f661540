#!/usr/bin/env bash
# Compiles base, the CPU backend and the tests of both for aarch64, and runs them under qemu-aarch64: those of kernels once
# for each instruction set, on an emulated CPU that has no better one. Prints one line for each run, then
# "N passed, N failed" of test cases; exits non-zero when one failed or did not run, or when something did not compile.
# Usage: tools/arm_check.sh [TEST ...]      (linear_test, ...; all of tests/kernels and tests/base when none is named)
# Needs the packages of "tools/setup.sh arm". Debian's arm64 libraries are fetched once (5 MB, by lists of its own), and
# are not installed. Everything it writes is in $SOMNUS_CACHE/arm.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0; }
cd "$SOMNUS_ROOT"

arm=$SOMNUS_CACHE/arm
libraries=$arm/libraries      # Debian's packages, unpacked
build=$arm/build
triple=aarch64-linux-gnu
packages=(libabsl-dev libgtest-dev libgmock-dev libspdlog-dev libspdlog1.10 libfmt-dev libfmt9 libssl-dev)

# The emulated CPU of each instruction set, and the cases of tests/kernels that do not run on it: those of lesser sets, and
# one that starts its own program again, which the kernel does not know to run with qemu.
cpus=(cortex-a72 neoverse-n1 max)
restarts='*.BlocksThatAreNotThereAreABrokenInvariant/*'
declare -A not_on=([cortex-a72]=$restarts [neoverse-n1]="$restarts:*/neon" [max]="$restarts:*/neon:*/neon_dotprod")

# The flags of kernels/cpu/BUILD.bazel.
declare -A march_of=([neon]=armv8-a [neon_dotprod]=armv8.2-a+dotprod [neon_bf16]=armv8.2-a+dotprod+bf16)
kernel_flags="-O3 -ffp-contract=off -fno-exceptions -Wno-maybe-uninitialized -Wno-uninitialized"

for program in $triple-g++ qemu-aarch64 make dpkg-deb; do
  command -v "$program" >/dev/null || die "$program is missing: run tools/setup.sh arm"
done

# Apt with lists, cache and status of its own, so that the system's packages and architectures stay as they are. Its
# sources and keys are the system's.
arm_apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$arm/apt" \
    -o Dir::State::status="$arm/apt/status" -o Dir::Cache="$arm/apt/cache" -o APT::Sandbox::User=root "$@"
}

fetch_libraries() {
  local wanted="${packages[*]}" downloads=$arm/downloads package
  [[ $(cat "$libraries/packages" 2>/dev/null) != "$wanted" ]] || return 0
  say "fetching Debian's arm64 packages: $wanted"
  rm -rf "$libraries" "$downloads"
  mkdir -p "$libraries" "$downloads" "$arm/apt/lists/partial" "$arm/apt/cache/archives/partial"
  : >"$arm/apt/status"
  arm_apt update || die "apt-get update for arm64 failed: is there a network?"
  (cd "$downloads" && arm_apt download "${packages[@]}") || die "apt-get could not download the arm64 packages"
  for package in "$downloads"/*.deb; do dpkg-deb -x "$package" "$libraries"; done
  rm -rf "$downloads"
  printf '%s\n' "$wanted" >"$libraries/packages"
}

# object SOURCE FLAGS...: a rule of the makefile.
object() {
  local source=$1 object=$build/${1%.cc}.o
  shift
  mkdir -p "${object%/*}"
  printf '%s: %s %s\n\t$(CXX) $(FLAGS) %s -MMD -MP -c %s -o $@\n' "$object" "$source" "$build/Makefile" "$*" "$source"
  printf -- '-include %s\n' "${object%.o}.d"
  objects+=("$object")
}

# test_program SOURCE: rules for its object and its program.
test_program() {
  local name
  name=$(basename "$1" .cc)
  object "$1"
  printf '%s: %s %s\n\t$(CXX) %s %s $(LIBRARIES) -o $@\n' "$build/$name" "$build/${1%.cc}.o" "$build/libsomnus.a" \
    "$build/${1%.cc}.o" "$build/libsomnus.a"
}

# The rules, of which every object depends: flags that change compile everything again.
makefile() {
  local source isa objects=() folder=$libraries/usr/lib/$triple
  printf 'CXX := %s-g++\nFLAGS := -std=c++20 -O2 -g0 -ffp-contract=off -fsigned-char -Wall -Wextra -Werror -Wno-unused-parameter' "$triple"
  printf ' -Wno-missing-field-initializers -I. -isystem %s -isystem %s\n' "$libraries/usr/include" "$libraries/usr/include/$triple"
  printf 'LIBRARIES := -L%s -Wl,-rpath,%s -lgtest_main -lgmock -lgtest' "$folder" "$folder"
  printf ' -Wl,--as-needed -lspdlog -lfmt -Wl,--start-group %s -Wl,--end-group -lpthread -ldl\n' \
    "$(cd "$folder" && printf '%s ' libabsl_*.a | sed 's/lib\([^ ]*\)\.a/-l\1/g')"
  for source in base/*.cc kernels/*.cc kernels/cuda/absent.cc kernels/cpu/[!k]*.cc checkpoint/dequantize.cc; do object "$source"; done
  for isa in "${!march_of[@]}"; do object "kernels/cpu/kernels_$isa.cc" "$kernel_flags -march=${march_of[$isa]}"; done
  printf '%s: %s\n\trm -f $@ && %s-ar rcs $@ %s\n' "$build/libsomnus.a" "${objects[*]}" "$triple" "${objects[*]}"
  for source in tests/kernels/*_test.cc tests/base/*_test.cc; do test_program "$source"; done
}

# run NAME CPU FILTER: adds a line with the cases that passed and failed to $counts. A run of no case at all has failed.
run() {
  local name=$1 cpu=$2 log=$build/$1.$2.log code=0 good bad
  qemu-aarch64 -L "/usr/$triple" -cpu "$cpu" "$build/$name" --gtest_filter="$3" >"$log" 2>&1 </dev/null || code=$?
  good=$(grep -c '^\[       OK \]' "$log" || true)
  bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) tests\{0,1\}, listed below.*/\1/p' "$log")
  bad=${bad:-0}
  ((code == 0 && good > 0)) || ((bad > 0)) || bad=1
  ((bad == 0)) || tail -n 40 "$log"
  printf '%-24s %-12s %4d passed, %d failed\n' "$name" "$cpu" "$good" "$bad"
  printf '%d %d\n' "$good" "$bad" >>"$counts"
}

# start NAME CPU FILTER: the same beside others, as many as there are CPUs.
start() {
  if (($(jobs -rp | wc -l) >= $(nproc))); then wait -n || true; fi
  run "$@" &
}

programs=()
for source in tests/kernels/*_test.cc tests/base/*_test.cc; do
  name=$(basename "$source" .cc)
  if (($# == 0)) || [[ " $* " == *" $name "* ]]; then programs+=("$name"); fi
done
((${#programs[@]})) || die "there is no such test: $*"

fetch_libraries
mkdir -p "$build"
makefile >"$build/Makefile.new"
if cmp -s "$build/Makefile.new" "$build/Makefile"; then rm "$build/Makefile.new"; else mv "$build/Makefile.new" "$build/Makefile"; fi
say "compiling for aarch64"
make -s -j"$(build_jobs)" -f "$build/Makefile" "${programs[@]/#/$build/}" || die "it does not compile for aarch64"

counts=$build/counts
: >"$counts"
runs=0
for name in "${programs[@]}"; do
  if [[ -e tests/base/$name.cc ]]; then
    start "$name" max '*'
    runs=$((runs + 1))
    continue
  fi
  for cpu in "${cpus[@]}"; do start "$name" "$cpu" "-${not_on[$cpu]}"; done
  runs=$((runs + ${#cpus[@]}))
done
wait
# A run that left no line has failed.
awk -v runs="$runs" '{ passed += $1; failed += $2 }
  END { failed += runs - NR; printf "%d passed, %d failed\n", passed, failed; exit failed != 0 }' "$counts"
