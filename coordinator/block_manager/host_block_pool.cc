#include "coordinator/block_manager/host_block_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {

HostBlockPool::HostBlockPool(int32_t num_blocks) : ref_counts_(num_blocks, 0) {
  SOMNUS_CHECK(num_blocks >= 0);
  free_.reserve(num_blocks);
  for (int32_t id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

int32_t HostBlockPool::Allocate() {
  SOMNUS_CHECK(!free_.empty());
  const int32_t id = free_.back();
  free_.pop_back();
  ref_counts_[id] = 1;
  return id;
}

void HostBlockPool::Reference(int32_t id) {
  SOMNUS_CHECK(is_used(id));
  ++ref_counts_[id];
}

bool HostBlockPool::Release(int32_t id) {
  SOMNUS_CHECK(is_used(id));
  if (--ref_counts_[id] > 0) return false;
  free_.push_back(id);
  return true;
}

absl::Status HostBlockPool::CheckIntegrity() const {
  std::vector<bool> is_free(ref_counts_.size(), false);
  for (const int32_t id : free_) {
    if (is_used(id) || is_free[id])
      return absl::InternalError(absl::StrCat("host block ", id, " is free and used, or free twice"));
    is_free[id] = true;
  }
  const auto used = static_cast<int32_t>(
      std::count_if(ref_counts_.begin(), ref_counts_.end(), [](int32_t count) { return count > 0; }));
  if (used != num_used()) {
    return absl::InternalError(absl::StrCat("host blocks do not add up: ", used, " used and ", num_free(),
                                            " free of ", num_total()));
  }
  return absl::OkStatus();
}

}  // namespace somnus
