#include "coordinator/block_manager/host_blocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

AllocStatus HostBlocks::CanTake(int32_t num_blocks) const {
  if (num_blocks > pool_.num_total()) return AllocStatus::kNever;
  return num_blocks <= num_available() ? AllocStatus::kOk : AllocStatus::kLater;
}

int32_t HostBlocks::Take() {
  if (pool_.num_free() == 0) SOMNUS_CHECK(cache_.Evict());
  return pool_.Allocate();
}

void HostBlocks::EvictDownTo(int64_t limit) {
  while (static_cast<int64_t>(pool_.num_used()) > limit && cache_.Evict()) continue;
}

std::vector<uint64_t> HostBlocks::Store(absl::Span<const KvBlock* const> cached, int32_t count, int64_t step,
                                        std::vector<BlockCopyOp>* swap_outs) {
  std::vector<uint64_t> stored;
  // This call gives up no block that it has stored itself.
  const int32_t room = std::min(count, num_available());
  for (const KvBlock* block : cached) {
    if (static_cast<int32_t>(stored.size()) == room) break;
    if (cache_.Has(block->content_id)) continue;
    if (pool_.num_free() == 0) SOMNUS_CHECK(cache_.Evict());
    swap_outs->push_back({block->id, cache_.Store(*block, step)});
    stored.push_back(block->content_id);
  }
  return stored;
}

absl::Status HostBlocks::CheckIntegrity(std::vector<bool>* taken) const {
  RETURN_IF_ERROR(pool_.CheckIntegrity());
  std::vector<int32_t> cached(pool_.num_total(), 0);
  RETURN_IF_ERROR(cache_.CheckIntegrity(&cached));
  for (int32_t id = 0; id < pool_.num_total(); ++id) {
    if (cached[id] == 0) continue;
    if ((*taken)[id] || pool_.ref_count(id) != 1 || cached[id] != 1)
      return absl::InternalError(absl::StrCat("host block ", id, " is cached, and something else"));
    (*taken)[id] = true;
  }
  return absl::OkStatus();
}

}  // namespace somnus
