// The Scheduler's part for preemption by swap: sequences that wait with their blocks in host memory.
//
// The workers copy in the order of steps, so blocks change hands on both sides as soon as a step is made. One
// thing is waited for: whether all ranks had memory for what was swapped out.

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/scheduler.h"
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

std::vector<BlockManager::Computed> Scheduler::ComputedOf(const std::vector<SequencePtr>& all) const {
  std::vector<BlockManager::Computed> computed;
  for (const SequencePtr& sequence : all) {
    for (const Sequence* one : WithBlocks(*sequence, blocks_)) {
      // Of beams that are computed again, one may share blocks that another one has still to fill: all of
      // their blocks stay together.
      const auto num_blocks = static_cast<int64_t>(blocks_.Table(one->id).size());
      const bool is_beam = sequence->beams != nullptr;
      computed.push_back({one->id, is_beam ? num_blocks * options_.blocks.block_size : one->num_computed});
    }
  }
  return computed;
}

bool Scheduler::PreemptsBySwap(const std::vector<SequencePtr>& all, PreemptionCause cause) {
  const bool is_choice = cause == PreemptionCause::kNoBlocks || cause == PreemptionCause::kPriority;
  const auto has_none = [](const SequencePtr& sequence) { return sequence->num_computed == 0; };
  if (!is_choice || options_.preemption == PreemptionMode::kRecompute || blocks_.total_host_blocks() == 0 ||
      std::all_of(all.begin(), all.end(), has_none)) {
    return false;
  }
  const SwapObstacle obstacle = FindSwapObstacle(all);
  ++stats_.swaps.obstacles[static_cast<size_t>(obstacle)];
  return obstacle == SwapObstacle::kNone;
}

SwapObstacle Scheduler::FindSwapObstacle(const std::vector<SequencePtr>& all) const {
  const std::vector<BlockManager::Computed> computed = ComputedOf(all);
  const int32_t num_blocks = blocks_.CountBlocks(computed);
  if (options_.preemption == PreemptionMode::kAuto) {
    int64_t num_tokens = 0, num_shared = -num_blocks;
    for (const BlockManager::Computed& one : computed) {
      num_tokens += one.num_tokens;
      num_shared += blocks_.BlocksFor(one.num_tokens);
    }
    // What they share is computed once.
    num_tokens -= num_shared * options_.blocks.block_size;
    if (!SwapIsCheaper(prices_, num_tokens, num_blocks)) return SwapObstacle::kPrice;
  }
  if (next_step_id_ < swap_again_step_) return SwapObstacle::kHostMemory;
  if (!swap_ins_.empty() || static_cast<int64_t>(swap_outs_.size()) + num_blocks > kMaxStepSwaps)
    return SwapObstacle::kStepFull;
  const bool has_room = blocks_.CanSwapOut(num_blocks) == AllocStatus::kOk;
  return has_room ? SwapObstacle::kNone : SwapObstacle::kHostFull;
}

void Scheduler::SwapOut(const std::vector<SequencePtr>& all) {
  const size_t first = swap_outs_.size();
  blocks_.SwapOut(ComputedOf(all), &swap_outs_);
  // The step makes copies of forks after that: until then what belongs into a copy is in its source.
  for (size_t i = first; i < swap_outs_.size(); ++i) {
    for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
      if (copy->dst == swap_outs_[i].src) swap_outs_[i].src = copy->src;
    }
  }
  for (const SequencePtr& sequence : all) {
    sequence->is_swapped = true;
    sequence->swap_step = next_step_id_;
    swapped_out_.push_back(sequence);
    ++num_swapped_;
  }
  stats_.swaps.out_blocks += static_cast<int64_t>(swap_outs_.size() - first);
}

bool Scheduler::MaySwapIn(const std::vector<SequencePtr>& all) {
  if (!swap_outs_.empty()) return false;
  auto num_swaps = static_cast<int64_t>(swap_ins_.size());
  const bool is_first = num_swaps == 0;
  for (const SequencePtr& sequence : all) {
    if (!sequence->is_swapped) continue;
    if (sequence->swap_step >= next_step_id_) return false;
    if (!in_flight_.empty() && in_flight_.front().step_id <= sequence->swap_step) return false;
    for (const Sequence* one : WithHostBlocks(*sequence, blocks_))
      num_swaps += blocks_.BlocksFor(one->num_computed);
  }
  return (is_first || num_swaps <= kMaxStepSwaps) && CopiesAreApart();
}

bool Scheduler::CopiesAreApart() {
  // What is swapped in must not lie where a copy of a fork is made after it, or from where.
  std::erase_if(copies_, [this](const BlockCopyOp& copy) { return !blocks_.is_used(copy.dst); });
  return std::all_of(copies_.begin(), copies_.end(),
                     [this](const BlockCopyOp& copy) { return blocks_.is_used(copy.src); });
}

bool Scheduler::SwapIn(const SequencePtr& sequence) {
  std::vector<SequencePtr> all = WaitingTogether(sequence);
  std::erase_if(all, [](const SequencePtr& one) { return !one->is_swapped; });
  std::vector<BlockManager::Returning> returning;
  for (const SequencePtr& one : all) {
    // What beams share is the same blocks afterwards, whatever of it was computed.
    const bool use_cache = one->beams == nullptr && UsesPrefixCache(*one);
    for (const Sequence* part : WithHostBlocks(*one, blocks_))
      returning.push_back({part->id, part->tokens, one->request.cache_salt, use_cache});
  }
  const size_t first = swap_ins_.size();
  if (blocks_.SwapIn(absl::MakeSpan(returning), IgnoresWatermark(*sequence), &swap_ins_) != AllocStatus::kOk)
    return false;
  stats_.swaps.in_blocks += static_cast<int64_t>(swap_ins_.size() - first);
  auto result = returning.begin();
  for (const SequencePtr& one : all) {
    for (const Sequence* part : WithBlocks(*one, blocks_)) stats_.swaps.in_tokens += part->num_computed;
    // What it had of others before, it still has.
    if (result->num_adopted > 0) {
      one->num_computed = std::max(result->num_adopted, one->num_computed);
      one->num_adopted = static_cast<int32_t>(one->num_computed);
    }
    result += static_cast<std::ptrdiff_t>(WithBlocks(*one, blocks_).size());
    one->is_swapped = false;
    one->is_suspended = true;
    --num_swapped_;
    ++num_suspended_;
  }
  return true;
}

void Scheduler::DropSwapped(Sequence* sequence) {
  for (const Sequence* one : WithHostBlocks(*sequence, blocks_)) blocks_.DropSwapped(one->id);
  sequence->num_computed = 0;
  sequence->is_swapped = false;
  --num_swapped_;
  if (sequence->beams == nullptr) return;
  for (const SequencePtr& other : sequence->beams->others) other->num_computed = 0;
  ResetBeams(sequence);
}

void Scheduler::DropAllSwapped() {
  for (const auto& [key, sequence] : waiting_) {
    if (sequence->is_swapped) DropSwapped(sequence.get());
  }
  blocks_.ForgetHostCache();
  swap_outs_.clear();
  swap_ins_.clear();
  swapped_out_.clear();
}

std::vector<SequencePtr> Scheduler::SendSwaps(v1::StepRequest* request) {
  stats_.swaps.evicted_blocks = blocks_.host_cache().num_evicted();
  AddCopies(std::exchange(swap_outs_, {}), request->mutable_swap_outs());
  AddCopies(std::exchange(swap_ins_, {}), request->mutable_swap_ins());
  return std::exchange(swapped_out_, {});
}

void Scheduler::NoteSwaps(const InFlightStep& step, const v1::StepReply& reply) {
  int64_t pause = 0;  // in steps
  for (const v1::SlotError& error : reply.slot_errors()) {
    if (error.slot() != kSwapsSlot) continue;
    const bool is_awaited = error.code() == static_cast<int>(absl::StatusCode::kUnavailable);
    pause = std::max(pause, is_awaited ? kAwaitedSwapSteps : kRefusedSwapSteps);
  }
  blocks_.NoteStored(step.stored, step.step_id, pause == 0);
  if (pause == 0) return;
  ++stats_.swaps.refusals;
  swap_again_step_ = std::max(swap_again_step_, next_step_id_ + pause);
  absl::flat_hash_set<const void*> counted;  // choices that were preempted together
  for (const SequencePtr& sequence : step.swapped_out) {
    // It has not come back before this reply.
    if (!sequence->is_swapped || sequence->swap_step != step.step_id) continue;
    DropSwapped(sequence.get());
    if (sequence->together != nullptr && !counted.insert(sequence->together.get()).second) continue;
    ++stats_.swaps.obstacles[static_cast<size_t>(SwapObstacle::kHostMemory)];
  }
}

}  // namespace somnus
