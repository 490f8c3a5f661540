#include "coordinator/scheduler/kept_sequences.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "base/check.h"
#include "coordinator/scheduler/beam_group.h"

namespace somnus {

const std::vector<KeptBlock>& KeptSequences::Choose(const KeepLimits& limits) {
  SOMNUS_CHECK(sequences_.num_running() == 0 && ledger_.empty());
  std::vector<ComputedTokens> computed;
  for (const auto& [key, sequence] : sequences_.waiting()) {
    if (!sequence->held.is_suspended) continue;
    for (const Sequence* one : WithBlocks(*sequence, blocks_))
      computed.push_back({one->id, one->num_computed});
  }
  const std::vector<int64_t> left_out = blocks_.kept().Choose(computed, limits);
  const absl::flat_hash_set<int64_t> without_room(left_out.begin(), left_out.end());
  for (const auto& [key, sequence] : sequences_.waiting()) {
    if (!sequence->held.is_suspended) continue;
    const std::vector<const Sequence*> all = WithBlocks(*sequence, blocks_);
    sequence->held.is_kept = std::none_of(
        all.begin(), all.end(), [&](const Sequence* one) { return without_room.contains(one->id); });
  }
  return blocks_.kept().blocks();
}

void KeptSequences::ForgetUnkept(bool keeps_swapped) {
  for (const auto& [key, sequence] : sequences_.waiting()) {
    if (sequence->held.is_suspended && !sequence->held.is_kept)
      sequences_.PreemptSuspended({sequence}, PreemptionCause::kReset);
  }
  if (!keeps_swapped) host_tier_.ForgetAll(sequences_.waiting());
  blocks_.kept().ForgetOthers();
}

void KeptSequences::Restore() {
  stats_.kept_blocks += static_cast<int64_t>(blocks_.kept().blocks().size());
  for (const auto& [key, sequence] : sequences_.waiting()) {
    if (!sequence->held.is_kept) continue;
    for (const Sequence* one : WithBlocks(*sequence, blocks_)) stats_.kept_tokens += one->num_computed;
  }
  Abandon();
}

void KeptSequences::Abandon() {
  for (const auto& [key, sequence] : sequences_.waiting()) sequence->held.is_kept = false;
  blocks_.kept().Release();
}

}  // namespace somnus
