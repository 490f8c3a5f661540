// The Scheduler's part for preemption by swap: sequences that wait with their blocks in host memory.
//
// The workers copy in the order of steps, so blocks change hands on both sides as soon as a step is made. One
// thing is waited for: whether all ranks had memory for what was swapped out.

#include <algorithm>
#include <utility>

#include "coordinator/scheduler/scheduler.h"
#include "proto/limits.h"

namespace somnus {
namespace {

// After a refusal hosts are asked again once so many steps have passed.
constexpr int64_t kRefusedSwapSteps = 512;

void AddCopies(const std::vector<BlockCopyOp>& copies,
               google::protobuf::RepeatedPtrField<v1::BlockCopy>* messages) {
  for (const BlockCopyOp& copy : copies) {
    v1::BlockCopy* message = messages->Add();
    message->set_src(copy.src);
    message->set_dst(copy.dst);
  }
}

}  // namespace

bool Scheduler::PreemptsBySwap(const Sequence& sequence, PreemptionCause cause) {
  const bool is_choice = cause == PreemptionCause::kNoBlocks || cause == PreemptionCause::kPriority;
  if (!is_choice || options_.preemption == PreemptionMode::kRecompute || blocks_.total_host_blocks() == 0 ||
      sequence.num_computed == 0) {
    return false;
  }
  const SwapObstacle obstacle = FindSwapObstacle(sequence);
  ++stats_.swaps.obstacles[static_cast<size_t>(obstacle)];
  return obstacle == SwapObstacle::kNone;
}

SwapObstacle Scheduler::FindSwapObstacle(const Sequence& sequence) const {
  if (sequence.beams != nullptr) return SwapObstacle::kBeams;  // what they share would be copied for each
  const int64_t num_blocks = blocks_.BlocksFor(sequence.num_computed);
  if (options_.preemption == PreemptionMode::kAuto &&
      !SwapIsCheaper(prices_, sequence.num_computed, num_blocks)) {
    return SwapObstacle::kPrice;
  }
  if (next_step_id_ < swap_again_step_) return SwapObstacle::kHostMemory;
  if (!swap_ins_.empty() || static_cast<int64_t>(swap_outs_.size()) + num_blocks > kMaxStepSwaps)
    return SwapObstacle::kStepFull;
  const bool has_room = blocks_.CanSwapOut(sequence.num_computed) == AllocStatus::kOk;
  return has_room ? SwapObstacle::kNone : SwapObstacle::kHostFull;
}

void Scheduler::SwapOut(const SequencePtr& sequence) {
  const size_t first = swap_outs_.size();
  blocks_.SwapOut(sequence->id, sequence->num_computed, &swap_outs_);
  // The step makes copies of forks after that: until then what belongs into a copy is in its source.
  for (size_t i = first; i < swap_outs_.size(); ++i) {
    for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
      if (copy->dst == swap_outs_[i].src) swap_outs_[i].src = copy->src;
    }
  }
  sequence->is_swapped = true;
  sequence->swap_step = next_step_id_;
  swapped_out_.push_back(sequence);
  ++num_swapped_;
  stats_.swaps.out_blocks += static_cast<int64_t>(swap_outs_.size() - first);
}

bool Scheduler::MaySwapIn(const Sequence& sequence) {
  if (!swap_outs_.empty() || sequence.swap_step >= next_step_id_) return false;
  if (!in_flight_.empty() && in_flight_.front().step_id <= sequence.swap_step) return false;
  const auto num_swaps = static_cast<int64_t>(swap_ins_.size());
  if (num_swaps > 0 && num_swaps + blocks_.BlocksFor(sequence.num_computed) > kMaxStepSwaps) return false;
  // What is swapped in must not lie where a copy of a fork is made after it, or from where.
  std::erase_if(copies_, [this](const BlockCopyOp& copy) { return !blocks_.is_used(copy.dst); });
  return std::all_of(copies_.begin(), copies_.end(),
                     [this](const BlockCopyOp& copy) { return blocks_.is_used(copy.src); });
}

int64_t Scheduler::SwapIn(Sequence* sequence) {
  const size_t first = swap_ins_.size();
  int64_t num_adopted = 0;
  const AllocStatus status =
      blocks_.SwapIn(sequence->id, sequence->tokens, sequence->request.cache_salt, UsesPrefixCache(*sequence),
                     running_.empty(), &swap_ins_, &num_adopted);
  if (status != AllocStatus::kOk) return -1;
  stats_.swaps.in_blocks += static_cast<int64_t>(swap_ins_.size() - first);
  stats_.swaps.in_tokens += sequence->num_computed;
  const int64_t computed = std::max(num_adopted, sequence->num_computed);
  // What it had of others before, it still has.
  if (num_adopted > 0) sequence->num_adopted = static_cast<int32_t>(computed);
  return computed;
}

void Scheduler::DropSwapped(Sequence* sequence) {
  blocks_.DropSwapped(sequence->id);
  sequence->num_computed = 0;
  sequence->is_swapped = false;
  --num_swapped_;
}

void Scheduler::DropAllSwapped() {
  for (const auto& [key, sequence] : waiting_) {
    if (sequence->is_swapped) DropSwapped(sequence.get());
  }
  swap_outs_.clear();
  swap_ins_.clear();
  swapped_out_.clear();
}

std::vector<SequencePtr> Scheduler::SendSwaps(v1::StepRequest* request) {
  AddCopies(std::exchange(swap_outs_, {}), request->mutable_swap_outs());
  AddCopies(std::exchange(swap_ins_, {}), request->mutable_swap_ins());
  return std::exchange(swapped_out_, {});
}

void Scheduler::NoteRefusedSwaps(const InFlightStep& step, const v1::StepReply& reply) {
  const bool refused = std::any_of(reply.slot_errors().begin(), reply.slot_errors().end(),
                                   [](const v1::SlotError& error) { return error.slot() == kSwapsSlot; });
  if (!refused) return;
  ++stats_.swaps.refusals;
  swap_again_step_ = next_step_id_ + kRefusedSwapSteps;
  for (const SequencePtr& sequence : step.swapped_out) {
    // It has not come back before this reply.
    if (!sequence->is_swapped || sequence->swap_step != step.step_id) continue;
    DropSwapped(sequence.get());
    ++stats_.swaps.obstacles[static_cast<size_t>(SwapObstacle::kHostMemory)];
  }
}

}  // namespace somnus
