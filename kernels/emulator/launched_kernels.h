#pragma once
// The kernels that this process has launched. With SOMNUS_EMULATOR_KERNELS=FILE a process appends a line with
// the name of each kernel at the process's exit. tests/cuda/gpu_tests_test.py reads the file. Thread safe.

namespace somnus::cuda_emulated::emulator {

void NoteLaunch(const void* kernel);

}  // namespace somnus::cuda_emulated::emulator
