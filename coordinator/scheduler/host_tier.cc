#include "coordinator/scheduler/host_tier.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "coordinator/scheduler/beam_group.h"
#include "proto/limits.h"

namespace somnus {
namespace {

// After a refusal hosts are asked again once so many steps have passed: soon, where ranks are taking the
// memory beside their steps.
constexpr int64_t kRefusedSwapSteps = 512;
constexpr int64_t kAwaitedSwapSteps = 32;

void AddCopies(const std::vector<BlockCopyOp>& copies,
               google::protobuf::RepeatedPtrField<v1::BlockCopy>* messages) {
  for (const BlockCopyOp& copy : copies) {
    v1::BlockCopy* message = messages->Add();
    message->set_src(copy.src);
    message->set_dst(copy.dst);
  }
}

}  // namespace

std::vector<ComputedTokens> HostTier::ComputedOf(const std::vector<SequencePtr>& all) const {
  std::vector<ComputedTokens> computed;
  for (const SequencePtr& sequence : all) {
    for (const Sequence* one : WithBlocks(*sequence, blocks_)) {
      // A beam that is computed again may share blocks that another beam has still to fill: all blocks of the
      // group stay together.
      const auto num_blocks = static_cast<int64_t>(blocks_.Table(one->id).size());
      const bool is_beam = sequence->beam.group != nullptr;
      computed.push_back({one->id, is_beam ? num_blocks * options_.blocks.block_size : one->num_computed});
    }
  }
  return computed;
}

bool HostTier::Takes(const std::vector<SequencePtr>& all, PreemptionCause cause) {
  const bool is_choice = cause == PreemptionCause::kNoBlocks || cause == PreemptionCause::kPriority;
  const auto has_none = [](const SequencePtr& sequence) {
    return sequence->num_computed == 0 || sequence->pools_early_rows();
  };
  if (!is_choice || options_.preemption == PreemptionMode::kRecompute ||
      blocks_.host().pool().num_total() == 0 || std::all_of(all.begin(), all.end(), has_none)) {
    return false;
  }
  const SwapObstacle obstacle = FindObstacle(all);
  ++counts_.obstacles[static_cast<size_t>(obstacle)];
  return obstacle == SwapObstacle::kNone;
}

SwapObstacle HostTier::FindObstacle(const std::vector<SequencePtr>& all) const {
  const std::vector<ComputedTokens> computed = ComputedOf(all);
  const int32_t num_blocks = blocks_.swapped().CountBlocks(computed);
  if (options_.preemption == PreemptionMode::kAuto) {
    int64_t num_tokens = 0, num_shared = -num_blocks;
    for (const ComputedTokens& one : computed) {
      num_tokens += one.num_tokens;
      num_shared += blocks_.swapped().CountBlocks({&one, 1});
    }
    // Tokens that the sequences share are computed once.
    num_tokens -= num_shared * options_.blocks.block_size;
    if (!SwapIsCheaper(prices_, num_tokens, num_blocks)) return SwapObstacle::kPrice;
  }
  if (HasPause()) return SwapObstacle::kHostMemory;
  if (!swap_ins_.empty() || static_cast<int64_t>(swap_outs_.size()) + num_blocks > kMaxStepSwaps)
    return SwapObstacle::kStepFull;
  const bool has_room = blocks_.host().CanTake(num_blocks) == AllocStatus::kOk;
  return has_room ? SwapObstacle::kNone : SwapObstacle::kHostFull;
}

void HostTier::SwapOut(const std::vector<SequencePtr>& all) {
  const size_t first = swap_outs_.size();
  blocks_.swapped().SwapOut(ComputedOf(all), &swap_outs_);
  // The step makes its copies of forks after the swaps: until then the contents of a copy are in its source.
  for (size_t i = first; i < swap_outs_.size(); ++i)
    swap_outs_[i].src = copies_.PresentPlace(swap_outs_[i].src);
  for (const SequencePtr& sequence : all) {
    sequence->held.is_swapped = true;
    sequence->held.swap_step = ledger_.next_step();
    swapped_out_.push_back(sequence);
    ++num_swapped_;
  }
  counts_.out_blocks += static_cast<int64_t>(swap_outs_.size() - first);
}

bool HostTier::MayRun(const std::vector<SequencePtr>& all) {
  if (!swap_outs_.empty()) return false;
  auto num_swaps = static_cast<int64_t>(swap_ins_.size());
  const bool is_first = num_swaps == 0;
  for (const SequencePtr& sequence : all) {
    if (!sequence->held.is_swapped) continue;
    if (sequence->held.swap_step >= ledger_.next_step() || ledger_.Awaits(sequence->held.swap_step))
      return false;
    for (const Sequence* one : WithHostBlocks(*sequence, blocks_))
      num_swaps += blocks_.BlocksFor(one->num_computed);
  }
  return (is_first || num_swaps <= kMaxStepSwaps) && copies_.AreApart(blocks_);
}

int32_t HostTier::SwapIn(std::vector<SequencePtr> all, bool ignore_watermark) {
  std::erase_if(all, [](const SequencePtr& one) { return !one->held.is_swapped; });
  std::vector<SwappedSequences::Returning> returning;
  for (const SequencePtr& one : all) {
    // Beams share the same blocks afterwards, however many of the tokens in them were computed.
    const bool is_beam = one->beam.group != nullptr, use_cache = !is_beam && one->uses_prefix_cache();
    for (const Sequence* part : WithHostBlocks(*one, blocks_))
      returning.push_back({part->id, part->tokens, one->request.cache_salt, use_cache, is_beam});
  }
  const size_t first = swap_ins_.size();
  if (blocks_.swapped().SwapIn(absl::MakeSpan(returning), ignore_watermark, &swap_ins_) != AllocStatus::kOk)
    return 0;
  counts_.in_blocks += static_cast<int64_t>(swap_ins_.size() - first);
  auto result = returning.begin();
  for (const SequencePtr& one : all) {
    for (const Sequence* part : WithBlocks(*one, blocks_)) counts_.in_tokens += part->num_computed;
    // Tokens that it had adopted before stay adopted; the swap-in may have found more of them.
    if (result->num_adopted > 0) {
      one->num_computed = std::max(result->num_adopted, one->num_computed);
      one->num_adopted = static_cast<int32_t>(one->num_computed);
    }
    result += static_cast<std::ptrdiff_t>(WithBlocks(*one, blocks_).size());
    one->held.is_swapped = false;
    one->held.is_suspended = true;
    --num_swapped_;
  }
  return static_cast<int32_t>(all.size());
}

void HostTier::ForgetUnusedSwapIns() {
  std::erase_if(swap_ins_, [this](const BlockCopyOp& copy) { return !blocks_.pool().is_used(copy.dst); });
}

void HostTier::OnForget(Sequence* sequence) {
  for (const Sequence* one : WithHostBlocks(*sequence, blocks_)) blocks_.swapped().Drop(one->id);
  sequence->num_computed = 0;
  sequence->held.is_swapped = false;
  --num_swapped_;
  if (sequence->beam.group == nullptr) return;
  for (const SequencePtr& other : sequence->beam.group->others) other->num_computed = 0;
  ResetBeams(sequence);
}

void HostTier::ForgetAll(const WaitingQueue& waiting) {
  for (const auto& [key, sequence] : waiting) {
    if (sequence->held.is_swapped) OnForget(sequence.get());
  }
  blocks_.host_cache().Clear();
  swap_outs_.clear();
  swap_ins_.clear();
  swapped_out_.clear();
}

void HostTier::Send(StepBuilder* builder) {
  counts_.evicted_blocks = blocks_.host().cache().num_evicted();
  AddCopies(std::exchange(swap_outs_, {}), builder->plan.request.mutable_swap_outs());
  AddCopies(std::exchange(swap_ins_, {}), builder->plan.request.mutable_swap_ins());
  builder->step.swapped_out = std::exchange(swapped_out_, {});
}

void HostTier::NoteReply(const InFlightStep& step, const v1::StepReply& reply) {
  int64_t pause = 0;  // in steps
  for (const v1::SlotError& error : reply.slot_errors()) {
    if (error.slot() != kSwapsSlot) continue;
    const bool is_awaited = error.code() == static_cast<int>(absl::StatusCode::kUnavailable);
    pause = std::max(pause, is_awaited ? kAwaitedSwapSteps : kRefusedSwapSteps);
  }
  blocks_.host_cache().NoteStored(step.stored, step.step_id, pause == 0);
  if (pause > 0) NoteRefusal(step, pause);
}

// A rank had no memory for what the step has swapped out.
void HostTier::NoteRefusal(const InFlightStep& step, int64_t pause) {
  ++counts_.refusals;
  swap_again_step_ = std::max(swap_again_step_, ledger_.next_step() + pause);
  absl::flat_hash_set<const void*> counted;  // choices that were preempted together
  for (const SequencePtr& sequence : step.swapped_out) {
    // A sequence does not come back before this reply.
    if (!sequence->held.is_swapped || sequence->held.swap_step != step.step_id) continue;
    OnForget(sequence.get());
    if (sequence->choice.together != nullptr && !counted.insert(sequence->choice.together.get()).second)
      continue;
    ++counts_.obstacles[static_cast<size_t>(SwapObstacle::kHostMemory)];
  }
}

bool HostTier::UsesCache() const {
  if (options_.host_prefix_caching == HostPrefixCaching::kOff || !options_.blocks.enable_prefix_caching ||
      blocks_.host().pool().num_total() == 0)
    return false;
  return options_.host_prefix_caching == HostPrefixCaching::kOn ||
         SwapIsCheaper(prices_, options_.blocks.block_size, 1);
}

// No step swaps both ways. Beams that are computed again may find too few blocks for the whole group when the
// first beams have theirs, so that a group takes nothing from the cache.
void HostTier::SetReadsCache(const Sequence& sequence) {
  const bool is_whole = sequence.beam.group == nullptr || sequence.beam.group->places.size() == 1;
  const int64_t most = blocks_.BlocksFor(options_.max_model_len);
  const bool has_room =
      swap_ins_.empty() || static_cast<int64_t>(swap_ins_.size()) + most <= int64_t{kMaxStepSwaps};
  blocks_.cache().SetReadsHost(is_whole && UsesCache() && swap_outs_.empty() && has_room &&
                               copies_.AreApart(blocks_));
}

void HostTier::TakeHits(const Sequence& sequence, int64_t num_found) {
  const std::vector<BlockCopyOp> hits = blocks_.cache().TakeHostHits();
  swap_ins_.insert(swap_ins_.end(), hits.begin(), hits.end());
  const auto num_blocks = static_cast<int64_t>(hits.size());
  counts_.in_blocks += num_blocks;
  if (sequence.was_scheduled) return;
  const int64_t num_hits = std::min(num_found, num_blocks * options_.blocks.block_size);
  counts_.host_hit_tokens += num_hits;
  if (blocks_.cache().reads_host() && sequence.uses_prefix_cache())
    counts_.host_query_tokens += sequence.prompt_len() - (num_found - num_hits);
}

// Cached blocks are lost only when blocks without known contents run out.
void HostTier::StoreCached(int32_t num_running, StepBuilder* builder) {
  if (!UsesCache() || builder->plan.empty() || !swap_ins_.empty() || HasPause()) return;
  const int32_t unknown = blocks_.pool().num_free() - blocks_.pool().num_cached();
  const auto room = kMaxStepSwaps - static_cast<int64_t>(swap_outs_.size());
  if (unknown > options_.max_step_stores + num_running || room < options_.max_step_stores) return;
  const size_t first = swap_outs_.size();
  builder->step.stored =
      blocks_.cache().StoreOnHost(options_.max_step_stores, ledger_.next_step(), &swap_outs_);
  const auto num_stored = static_cast<int64_t>(swap_outs_.size() - first);
  counts_.out_blocks += num_stored;
  counts_.stored_blocks += num_stored;
}

absl::Status HostTier::CheckIntegrity(const WaitingQueue& waiting) const {
  int32_t num_swapped = 0, num_tables = 0;
  for (const auto& [key, sequence] : waiting) {
    if (!sequence->held.is_swapped) continue;
    ++num_swapped;
    num_tables += static_cast<int32_t>(WithHostBlocks(*sequence, blocks_).size());
    if (sequence->held.is_suspended || !blocks_.swapped().Has(sequence->id))
      return absl::InternalError(
          absl::StrCat("sequence ", sequence->id, " is swapped out without its blocks"));
  }
  if (num_swapped == num_swapped_ && num_tables == blocks_.swapped().size()) return absl::OkStatus();
  return absl::InternalError("swapped sequences do not add up");
}

}  // namespace somnus
