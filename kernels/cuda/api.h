#pragma once
// The one door to CUDA for kernels and their host code. Compiled by nvcc, it is the toolkit's runtime API;
// compiled with SOMNUS_CUDA_EMULATOR by the host compiler, it is the emulator's twin of it, and the same
// sources become a device that runs on a machine without a GPU (kernels/emulator). Each variant lives in
// a namespace of its own, so that one binary may hold both.

#ifdef SOMNUS_CUDA_EMULATOR
#define SOMNUS_CUDA_NAMESPACE cuda_emulated
#include "kernels/emulator/runtime.h"
#else
#define SOMNUS_CUDA_NAMESPACE cuda_device
#include <cuda_runtime.h>
#endif
