#!/usr/bin/env bash
# Compiles allocator/hip_vmm_driver.cc, the driver for AMD's GPUs, against HIP's headers, with warnings as errors. Prints
# one line, "hip: ..."; where there are no headers it says so, and that is no failure. Nothing is linked or run.
# HIP_INCLUDE=FOLDER names the folder that holds hip/; otherwise those of the system and of ROCm are tried, and what
# tools/setup.sh tests has fetched (Debian's libamdhip64-dev, which it does not install).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$SOMNUS_ROOT"
header=hip/hip_runtime_api.h

if [[ -n ${HIP_INCLUDE:-} ]]; then places=("$HIP_INCLUDE"); else places=(/usr/include /opt/rocm/include "$SOMNUS_HIP/usr/include"); fi
for include in "${places[@]}"; do
  [[ -e $include/$header ]] || continue
  object=$(mktemp --suffix=.o)
  trap 'rm -f "$object"' EXIT
  "${CXX:-g++}" -std=c++20 -O1 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -D__HIP_PLATFORM_AMD__ \
    -I. -isystem "$include" -c allocator/hip_vmm_driver.cc -o "$object"
  echo "hip: allocator/hip_vmm_driver.cc compiles against $include"
  exit 0
done
echo "hip: skipped: no $header in ${places[*]} (tools/setup.sh tests fetches it)"
