// Settings of the tests of ranks on a GPU (cuda_test links this file there), for ranks that are threads of a
// single process. Served ranks are separate processes, and need no such settings.
//
// All kernels are loaded when CUDA starts. Otherwise a kernel is loaded at its first launch, which may wait
// for the device, while the device waits for a rank that has not been served yet: for ever.
//
// Each rank's stream gets a separate queue in the device. By default CUDA spreads all streams over 8 queues,
// and a kernel that waits for a second rank would block that rank's kernels further back in the same queue.

#include <stdlib.h>

namespace somnus::cuda_test {
namespace {

// Before main: before the first call of CUDA, and before there are threads.
[[maybe_unused]] const int kLoadAtStart = setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);
[[maybe_unused]] const int kQueueForEachStream = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/1);

}  // namespace
}  // namespace somnus::cuda_test
