// The Scheduler's part for sequences that wait with their blocks, and for what outlives a sleep.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

// The pointer is passed by value: see Preempt.
void Scheduler::Suspend(SequencePtr sequence) {
  LeaveRunning(sequence.get());
  sequence->state = SequenceState::kWaiting;
  sequence->is_suspended = true;
  waiting_.Insert(sequence, next_step_id_);
  ++num_preempted_;
  ++num_suspended_;
}

void Scheduler::SuspendAll() {
  SOMNUS_CHECK(in_flight_.empty());
  while (!running_.empty()) Suspend(running_.rbegin()->second);
}

void Scheduler::PreemptSuspended(const std::vector<SequencePtr>& all, PreemptionCause cause) {
  const bool swaps = PreemptsBySwap(all, cause);
  if (swaps) SwapOut(all);
  for (const SequencePtr& sequence : all) {
    if (!swaps) FreeBlocks(sequence.get(), &blocks_);
    sequence->is_suspended = sequence->is_kept = false;
    --num_suspended_;
  }
  // What the step in the making brings back for nobody.
  std::erase_if(swap_ins_, [this](const BlockCopyOp& copy) { return !blocks_.is_used(copy.dst); });
  stats_.preemptions.Add(cause, swaps);
}

bool Scheduler::PreemptSuspendedBehind(const ServiceKey& key, const Sequence& taker) {
  if (num_suspended_ == 0) return false;
  const auto end = std::make_reverse_iterator(waiting_.begin());
  for (auto it = std::make_reverse_iterator(waiting_.end()); it != end && it->first > key; ++it) {
    if (!it->second->is_suspended) continue;
    const bool is_same = taker.choices != nullptr && it->second->choices == taker.choices;
    const std::vector<SequencePtr> victims =
        is_same ? std::vector<SequencePtr>{it->second} : SuspendedChoices(it->second, key);
    PreemptSuspended(victims, PreemptionCause::kNoBlocks);
    if (!is_same) KeepTogether(victims);
    return true;
  }
  return false;
}

const std::vector<KeptBlock>& Scheduler::ChooseKept(const KeepLimits& limits) {
  SOMNUS_CHECK(running_.empty() && in_flight_.empty());
  std::vector<BlockManager::Computed> computed;
  for (const auto& [key, sequence] : waiting_) {
    if (!sequence->is_suspended) continue;
    for (const Sequence* one : WithBlocks(*sequence, blocks_))
      computed.push_back({one->id, one->num_computed});
  }
  const std::vector<int64_t> left_out = blocks_.ChooseKept(computed, limits);
  const absl::flat_hash_set<int64_t> without_room(left_out.begin(), left_out.end());
  for (const auto& [key, sequence] : waiting_) {
    if (!sequence->is_suspended) continue;
    const std::vector<const Sequence*> all = WithBlocks(*sequence, blocks_);
    sequence->is_kept = std::none_of(all.begin(), all.end(),
                                     [&](const Sequence* one) { return without_room.contains(one->id); });
  }
  return blocks_.kept();
}

void Scheduler::ForgetUnkept(bool keeps_swapped) {
  for (const auto& [key, sequence] : waiting_) {
    if (sequence->is_suspended && !sequence->is_kept) PreemptSuspended({sequence}, PreemptionCause::kReset);
  }
  if (!keeps_swapped) DropAllSwapped();
  blocks_.ForgetUnkept();
}

void Scheduler::RestoreKept() {
  stats_.kept_blocks += static_cast<int64_t>(blocks_.kept().size());
  for (const auto& [key, sequence] : waiting_) {
    if (!sequence->is_kept) continue;
    for (const Sequence* one : WithBlocks(*sequence, blocks_)) stats_.kept_tokens += one->num_computed;
  }
  AbandonKept();
}

void Scheduler::AbandonKept() {
  for (const auto& [key, sequence] : waiting_) sequence->is_kept = false;
  blocks_.ReleaseKept();
}

void Scheduler::ForgetComputed(CacheLoss cause) {
  PreemptAll(cause == CacheLoss::kFailure ? PreemptionCause::kFailure : PreemptionCause::kReset);
  DropAllSwapped();
  copies_.clear();
  blocks_.ResetPrefixCache(cause);
  blocks_.ReleaseKept();
}

absl::Status Scheduler::CheckSuspended() const {
  int32_t num_suspended = 0, num_swapped = 0, num_tables = 0;
  for (const auto& [key, sequence] : waiting_) {
    if (sequence->is_swapped) {
      ++num_swapped;
      num_tables += static_cast<int32_t>(WithHostBlocks(*sequence, blocks_).size());
      if (sequence->is_suspended || !blocks_.is_swapped(sequence->id))
        return absl::InternalError(
            absl::StrCat("sequence ", sequence->id, " is swapped out without its blocks"));
      continue;
    }
    if (!sequence->is_suspended) {
      if (sequence->is_kept || sequence->num_computed != 0)
        return absl::InternalError(absl::StrCat("sequence ", sequence->id, " waits without its blocks"));
      continue;
    }
    ++num_suspended;
    const int64_t capacity =
        static_cast<int64_t>(blocks_.Table(sequence->id).size()) * options_.blocks.block_size;
    if (capacity < sequence->num_computed) {
      return absl::InternalError(
          absl::StrCat("sequence ", sequence->id, " is suspended with more tokens than its blocks hold"));
    }
  }
  if (num_suspended != num_suspended_) return absl::InternalError("suspended sequences do not add up");
  if (num_swapped != num_swapped_ || num_tables != blocks_.num_swapped())
    return absl::InternalError("swapped sequences do not add up");
  return absl::OkStatus();
}

}  // namespace somnus
