#pragma once
// VmmDriver over an AMD GPU's memory. UNVERIFIED: the code compiles against ROCm 5.2's header (Debian's
// libamdhip64-dev) and has never run on a GPU. The HIP library is looked for at run time.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "allocator/host_account.h"
#include "allocator/vmm_driver.h"

namespace somnus {

struct HipVmmDriverOptions {
  // As CudaVmmDriverOptions::chunk_bytes, but small by default: on some versions of ROCm the memory of a
  // large mapping is only given back when the addresses are freed.
  int64_t chunk_bytes = 64 << 20;
  std::shared_ptr<HostMemoryAccount> account;  // as CudaVmmDriverOptions::account
};

// Thread safe. Copies go over a stream of its own. Unavailable: no library, a library of another major
// version than the header's, or no such device. Unimplemented: this build was made where the header is not
// installed.
absl::StatusOr<std::unique_ptr<VmmDriver>> MakeHipVmmDriver(int device_index,
                                                            const HipVmmDriverOptions& options = {});

}  // namespace somnus
