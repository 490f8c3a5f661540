#pragma once
// VmmDriver over a GPU's memory. The CUDA driver library is looked for at run time, so that one binary starts
// with and without a GPU.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/host_account.h"
#include "allocator/vmm_driver.h"

namespace somnus {

struct CudaVmmDriverOptions {
  // A region's physical memory is created, mapped and released in pieces of this size; all of that costs some
  // 2 to 3 ms for a GiB, in pieces of 100 MiB as in pieces of a GiB (docs/gpu_verification.md). Rounded down
  // to a multiple of the device's granularity, which is the minimum.
  int64_t chunk_bytes = int64_t{1} << 30;
  // Pinned memory is reserved in this account until the memory is resident; null: the host's account.
  std::shared_ptr<HostMemoryAccount> account;
  // Pinned memory comes from these NUMA nodes, as in PlacePages (base/numa.h); empty: any node.
  std::vector<int> numa_nodes;
};

// Works in the device's primary context, which the CUDA runtime shares. Thread safe. Copies go over a stream
// of its own. Unavailable: no driver library, no such device, or a device without virtual memory management.
// Unimplemented: this build has no CUDA.
absl::StatusOr<std::unique_ptr<VmmDriver>> MakeCudaVmmDriver(int device_index,
                                                             const CudaVmmDriverOptions& options = {});

// The device's address on the PCI bus, "0000:3b:00.0", in the kernel's notation. Errors as above.
absl::StatusOr<std::string> CudaPciBusId(int device_index);

}  // namespace somnus
