#pragma once
// The only header by which kernels and their host code reach CUDA. Compiled by nvcc, this header is the
// toolkit's runtime API; compiled with SOMNUS_CUDA_EMULATOR by the host compiler, this header is the
// emulator's implementation of that API, and the same sources become a device that runs on a machine without
// a GPU (kernels/emulator). Each variant lives in a namespace of its own, so that one binary may hold both.

#ifdef SOMNUS_CUDA_EMULATOR
#define SOMNUS_CUDA_NAMESPACE cuda_emulated
#include "kernels/emulator/runtime.h"
#else
#define SOMNUS_CUDA_NAMESPACE cuda_device
#include <cuda_runtime.h>
#endif
