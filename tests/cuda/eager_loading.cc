// Of every test that runs on a GPU (cuda_test links it): all kernels are loaded when CUDA starts. Else a
// kernel is loaded at its first launch, which may wait for the device; where ranks are threads of one process
// the device may be waiting for a rank that has yet to be served, for ever. Served ranks are processes of
// their own, and load kernels when they need them.

#include <stdlib.h>

namespace somnus::cuda_test {
namespace {

// Before main: before the first call of CUDA, and before there are threads.
[[maybe_unused]] const int kLoadAtStart = setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);

}  // namespace
}  // namespace somnus::cuda_test
