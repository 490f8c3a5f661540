#pragma once
// VmmDriver over anonymous host memory with transparent huge pages, so that sleeping really gives memory back
// on a machine without a GPU. A handle becomes physical when SetAccess populates the pages, in parallel;
// Release maps the range back to PROT_NONE, which frees whole huge pages at once. From Create until then, and
// from AllocateHost until the copy, the bytes are reserved in the host's account. Thread safe.

#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/host_account.h"
#include "allocator/vmm_driver.h"

namespace somnus {

struct HostVmmDriverOptions {
  int num_threads = 0;             // for populate and copies; 0: the CPUs of this process, at most 4
  int64_t memory_limit_bytes = 0;  // of all live handles; 0: the host's available memory
  std::shared_ptr<HostMemoryAccount> account;  // counts the host's available memory; null: the host's account
  std::vector<int> numa_nodes;  // where memory comes from, as in PlacePages (base/numa.h); empty: any
};

std::unique_ptr<VmmDriver> MakeHostVmmDriver(const HostVmmDriverOptions& options = {});

}  // namespace somnus
