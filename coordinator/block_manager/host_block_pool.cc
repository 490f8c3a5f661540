#include "coordinator/block_manager/host_block_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {

HostBlockPool::HostBlockPool(int32_t num_blocks) : is_used_(num_blocks, false) {
  SOMNUS_CHECK(num_blocks >= 0);
  free_.reserve(num_blocks);
  for (int32_t id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

int32_t HostBlockPool::Allocate() {
  SOMNUS_CHECK(!free_.empty());
  const int32_t id = free_.back();
  free_.pop_back();
  is_used_[id] = true;
  return id;
}

void HostBlockPool::Release(int32_t id) {
  SOMNUS_CHECK(is_used(id));
  is_used_[id] = false;
  free_.push_back(id);
}

absl::Status HostBlockPool::CheckIntegrity() const {
  std::vector<bool> is_free(is_used_.size(), false);
  for (const int32_t id : free_) {
    if (is_used(id) || is_free[id])
      return absl::InternalError(absl::StrCat("host block ", id, " is free and used, or free twice"));
    is_free[id] = true;
  }
  const auto used = static_cast<int32_t>(std::count(is_used_.begin(), is_used_.end(), true));
  if (used != num_used()) {
    return absl::InternalError(absl::StrCat("host blocks do not add up: ", used, " used and ", num_free(),
                                            " free of ", num_total()));
  }
  return absl::OkStatus();
}

}  // namespace somnus
