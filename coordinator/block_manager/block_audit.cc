#include "coordinator/block_manager/block_audit.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {

absl::Status BlockAudit::CheckAll() const {
  RETURN_IF_ERROR(pool_.CheckIntegrity());
  RETURN_IF_ERROR(CheckReferences());
  std::vector<bool> taken(host_.pool().num_total(), false);  // by host block
  RETURN_IF_ERROR(host_.CheckIntegrity(&taken));
  RETURN_IF_ERROR(kept_.CheckIntegrity(&taken));
  RETURN_IF_ERROR(swapped_.CheckIntegrity(taken));
  return CheckHostCounts();
}

absl::Status BlockAudit::CheckReferences() const {
  std::vector<int32_t> counts(num_blocks_, 0);
  for (const auto& [id, table] : tables_) {
    for (const KvBlock* block : table.blocks) counts[block->id] += IsNull(*block) ? 0 : 1;
  }
  RETURN_IF_ERROR(pins_.CheckIntegrity(&counts));
  for (int32_t id = 0; id < num_blocks_; ++id) {
    const int32_t references = pool_.block(id)->ref_count;
    if (counts[id] != references) {
      return absl::InternalError(absl::StrCat("block ", id, " has ", references, " references but is in ",
                                              counts[id], " tables and pins"));
    }
  }
  return absl::OkStatus();
}

absl::Status BlockAudit::CheckHostCounts() const {
  const auto num_kept = static_cast<int32_t>(kept_.blocks().size());
  if (num_kept + swapped_.num_blocks() == host_.num_taken()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(host_.pool().num_used(), " host blocks are used, ", num_kept,
                                          " kept, ", swapped_.num_blocks(), " swapped out, ",
                                          host_.cache().size(), " cached"));
}

absl::Status BlockAudit::CheckNext(int32_t count) {
  const int32_t first = next_, end = std::min(num_blocks_, first + count);
  next_ = end == num_blocks_ ? 0 : end;
  RETURN_IF_ERROR(pool_.CheckBlocks(first, end));
  RETURN_IF_ERROR(CheckHostCounts());
  return tables_.empty() ? CheckPinned(first, end) : absl::OkStatus();
}

absl::Status BlockAudit::CheckPinned(int32_t first, int32_t end) const {
  if (pool_.num_used() != pins_.num_blocks()) {
    return absl::InternalError(absl::StrCat("no sequence has blocks, and pins have ", pins_.num_blocks(),
                                            ", but ", pool_.num_used(), " are used"));
  }
  for (int32_t id = first; id < end; ++id) {
    if (const int32_t references = pool_.block(id)->ref_count; references != pins_.num_holders(id)) {
      return absl::InternalError(absl::StrCat("no sequence has blocks, and ", pins_.num_holders(id),
                                              " pins have block ", id, ", but it has ", references,
                                              " references"));
    }
  }
  return absl::OkStatus();
}

}  // namespace somnus
