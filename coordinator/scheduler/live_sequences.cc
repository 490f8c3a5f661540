#include "coordinator/scheduler/live_sequences.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "coordinator/request/request_trail.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/drafts.h"
#include "coordinator/scheduler/request_progress.h"

namespace somnus {
namespace {

void CountRunning(const Sequence& sequence, int32_t by) {
  if (sequence.request.adapter != nullptr) sequence.request.adapter->num_running += by;
}
void CountWaiting(const Sequence& sequence, int32_t by) {
  if (sequence.request.adapter != nullptr) sequence.request.adapter->num_waiting += by;
}

void NoteInTrail(const Sequence& sequence, TrailEvent event, absl::string_view detail = "") {
  if (sequence.request.trail != nullptr) sequence.request.trail->Note(event, detail);
}

// "no_blocks, swap"
void NotePreempted(const Sequence& sequence, PreemptionCause cause, bool swaps) {
  if (sequence.request.trail == nullptr) return;
  NoteInTrail(sequence, TrailEvent::kPreempted,
              absl::StrCat(kPreemptionCauses[static_cast<size_t>(cause)], swaps ? ", swap" : ", recompute"));
}

}  // namespace

LiveSequences::LiveSequences(const SchedulerOptions& options, const LongPrompts& long_prompts,
                             const StepLedger& ledger, BlockManager* blocks, Slots* slots,
                             HostTier* host_tier, Beams* beams, PreemptionCounts* counts)
    : options_(options),
      ledger_(ledger),
      blocks_(*blocks),
      slots_(*slots),
      host_tier_(*host_tier),
      beams_(*beams),
      counts_(*counts),
      waiting_(options.policy == SchedulingPolicy::kPriority ? options.priority_aging_steps : 0,
               long_prompts.threshold()) {}

SequencePtr LiveSequences::Add(EngineRequest request) {
  SOMNUS_CHECK(!live_.contains(request.id));
  const bool by_priority = options_.policy == SchedulingPolicy::kPriority;
  auto sequence = std::make_shared<Sequence>();
  sequence->id = next_id_++;
  sequence->arrival_step = ledger_.next_step();
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  if (by_priority) sequence->effective_priority = sequence->request.priority;
  const auto progress = std::exchange(sequence->request.progress, nullptr);
  beams_.Begin(progress == nullptr ? nullptr : progress->beams.get(), sequence.get());
  if (progress != nullptr) {
    SetProgress(*progress, sequence.get());
    if (!by_priority) sequence->effective_priority = 0;
    num_preempted_ += sequence->was_scheduled ? 1 : 0;
  }
  const SequencePtr first = Find(sequence->request.fork_of);
  const bool awaits_fork = Choices::AwaitFork(sequence, first);
  // The prompt of a fork is computed with its source's: where the source is scheduled, it is on its way.
  if (awaits_fork && first->was_scheduled) sequence->request.first_token_by = absl::InfiniteDuration();
  choices_.Join(sequence, first);
  if (options_.accounts != nullptr) sequence->visit = options_.accounts->Enter(sequence->request.user);
  expiries_.Insert(sequence);
  InsertWaiting(sequence);
  live_.emplace(sequence->request.id, sequence);
  return sequence;
}

SequencePtr LiveSequences::Find(const std::string& request_id) const {
  const auto it = live_.find(request_id);
  return it == live_.end() ? nullptr : it->second;
}

void LiveSequences::InsertWaiting(const SequencePtr& sequence) {
  CountWaiting(*sequence, 1);
  sequence->state = SequenceState::kWaiting;
  waiting_.Insert(sequence, ledger_.next_step());
}

void LiveSequences::Start(const SequencePtr& sequence, int64_t num_computed) {
  waiting_.Erase(sequence.get(), ledger_.next_step());
  if (sequence->visit != nullptr) sequence->service = sequence->visit->service();
  running_.emplace(KeyOf(*sequence), sequence);
  CountWaiting(*sequence, -1);
  CountRunning(*sequence, 1);
  sequence->state = SequenceState::kRunning;
  num_suspended_ -= sequence->held.is_suspended ? 1 : 0;
  sequence->held.is_suspended = false;
  Choices::LeaveTogether(sequence.get());
  sequence->num_computed = num_computed;
  sequence->num_charged = std::max(sequence->num_charged, num_computed);
  sequence->slot = slots_.Take();
  if (sequence->beam.group != nullptr) beams_.OnStart(sequence);
  num_preempted_ -= sequence->was_scheduled ? 1 : 0;
  NoteInTrail(*sequence, sequence->was_scheduled ? TrailEvent::kResumed : TrailEvent::kScheduled);
}

void LiveSequences::NoteScheduled(const SequencePtr& sequence) {
  sequence->was_scheduled = true;
  expiries_.Insert(sequence);
  for (const SequencePtr& fork : Choices::ForksOf(*sequence)) {
    fork->request.first_token_by = absl::InfiniteDuration();
    expiries_.Insert(fork);
  }
}

void LiveSequences::LeaveRunning(Sequence* sequence) {
  CountRunning(*sequence, -1);
  slots_.Return(sequence->slot, /*is_known=*/true);
  sequence->slot = -1;
  if (sequence->beam.group != nullptr) beams_.OnPreempt(sequence);
  Drafts::OnPreempt(sequence);
  running_.erase(KeyOf(*sequence));
}

void LiveSequences::Preempt(const std::vector<SequencePtr>& all, PreemptionCause cause) {
  const bool swaps = host_tier_.Takes(all, cause);
  for (const SequencePtr& sequence : all) LeaveRunning(sequence.get());
  if (swaps) host_tier_.SwapOut(all);
  for (const SequencePtr& sequence : all) {
    if (!swaps) FreeBlocks(sequence.get(), &blocks_);
    InsertWaiting(sequence);
    ++num_preempted_;
    ++sequence->num_preemptions;
    NotePreempted(*sequence, cause, swaps);
  }
  counts_.Add(cause, swaps);
}

void LiveSequences::PreemptSuspended(const std::vector<SequencePtr>& all, PreemptionCause cause) {
  const bool swaps = host_tier_.Takes(all, cause);
  if (swaps) host_tier_.SwapOut(all);
  for (const SequencePtr& sequence : all) {
    if (!swaps) FreeBlocks(sequence.get(), &blocks_);
    sequence->held.is_suspended = sequence->held.is_kept = false;
    --num_suspended_;
    ++sequence->num_preemptions;
    NotePreempted(*sequence, cause, swaps);
  }
  host_tier_.ForgetUnusedSwapIns();
  counts_.Add(cause, swaps);
}

bool LiveSequences::PreemptSuspendedBehind(const ServiceKey& key, const Sequence& taker) {
  if (num_suspended_ == 0) return false;
  const auto end = std::make_reverse_iterator(waiting_.begin());
  for (auto it = std::make_reverse_iterator(waiting_.end()); it != end && it->first > key; ++it) {
    if (!it->second->held.is_suspended) continue;
    const bool is_same = taker.choice.group != nullptr && it->second->choice.group == taker.choice.group;
    const std::vector<SequencePtr> victims =
        is_same ? std::vector<SequencePtr>{it->second} : Choices::SuspendedBehind(it->second, key);
    PreemptSuspended(victims, PreemptionCause::kNoBlocks);
    if (!is_same) Choices::KeepTogether(victims);
    return true;
  }
  return false;
}

void LiveSequences::PreemptAll(PreemptionCause cause) {
  while (!running_.empty()) Preempt(Choices::Running(running_.rbegin()->second), cause);
  for (const auto& [key, sequence] : waiting_) {
    if (sequence->held.is_suspended)
      PreemptSuspended(Choices::SuspendedBehind(sequence, kFirstServiceKey), cause);
  }
}

// The pointer is passed by value: the map of running sequences gives its own up.
void LiveSequences::Suspend(SequencePtr sequence) {
  if (sequence->pools_early_rows()) return Preempt({sequence}, PreemptionCause::kReset);
  LeaveRunning(sequence.get());
  sequence->held.is_suspended = true;
  InsertWaiting(sequence);
  ++num_preempted_;
  ++num_suspended_;
  NoteInTrail(*sequence, TrailEvent::kSuspended);
}

void LiveSequences::SuspendAll() {
  while (!running_.empty()) Suspend(running_.rbegin()->second);
}

bool LiveSequences::SwapIn(const std::vector<SequencePtr>& all, bool ignore_watermark) {
  const int32_t num_suspended = host_tier_.SwapIn(all, ignore_watermark);
  num_suspended_ += num_suspended;
  return num_suspended > 0;
}

void LiveSequences::Finish(const SequencePtr& sequence) {
  if (sequence->state == SequenceState::kRunning) {
    LeaveRunning(sequence.get());
    FreeBlocks(sequence.get(), &blocks_);
  } else {
    CountWaiting(*sequence, -1);
    waiting_.Erase(sequence.get(), ledger_.next_step());
    num_preempted_ -= sequence->was_scheduled ? 1 : 0;
    num_suspended_ -= sequence->held.is_suspended ? 1 : 0;
    if (sequence->held.is_swapped) host_tier_.OnForget(sequence.get());
    sequence->held.is_suspended ? FreeBlocks(sequence.get(), &blocks_)
                                : blocks_.cache().Withdraw(sequence->id);
    sequence->held.is_suspended = sequence->held.is_kept = false;
  }
  choices_.OnForget(sequence.get());
  expiries_.Erase(*sequence);
  sequence->state = SequenceState::kFinished;
  sequence->choice.forks.clear();
  sequence->visit.reset();
  live_.erase(sequence->request.id);
}

void LiveSequences::OrderByService() {
  Running ordered;
  while (!running_.empty()) {
    auto node = running_.extract(running_.begin());
    Sequence& sequence = *node.mapped();
    sequence.service = sequence.visit->service();
    node.key() = KeyOf(sequence);
    ordered.insert(ordered.end(), std::move(node));  // most stay in their order
  }
  running_ = std::move(ordered);
  waiting_.RefreshFirst();
}

absl::Status LiveSequences::CheckIntegrity() const {
  if (live_.size() != running_.size() + waiting_.size())
    return absl::InternalError("sequences do not add up");
  RETURN_IF_ERROR(CheckRunning());
  RETURN_IF_ERROR(CheckWaiting());
  return host_tier_.CheckIntegrity(waiting_);
}

absl::Status LiveSequences::CheckCapacity(const Sequence& sequence) const {
  const int64_t capacity =
      static_cast<int64_t>(blocks_.Table(sequence.id).size()) * options_.blocks.block_size;
  if (capacity >= sequence.num_computed) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("sequence ", sequence.id, " has computed more tokens than its blocks hold"));
}

absl::Status LiveSequences::CheckRunning() const {
  std::vector<int32_t> taken_slots;
  for (const auto& [key, sequence] : running_) {
    taken_slots.push_back(sequence->slot);
    if (sequence->beam.group != nullptr) {
      for (const SequencePtr& other : sequence->beam.group->others) taken_slots.push_back(other->slot);
      RETURN_IF_ERROR(CheckGroup(*sequence, blocks_));
    }
    RETURN_IF_ERROR(CheckCapacity(*sequence));
  }
  RETURN_IF_ERROR(slots_.CheckIntegrity(taken_slots));
  const int32_t used = blocks_.pool().num_used() - blocks_.pins().num_blocks();
  if (running_.empty() && num_suspended_ == 0 && used != 0)
    return absl::InternalError(absl::StrCat(used, " blocks are used though nothing runs"));
  return absl::OkStatus();
}

absl::Status LiveSequences::CheckWaiting() const {
  int32_t num_preempted = 0, num_suspended = 0;
  for (const auto& [key, sequence] : waiting_) {
    num_preempted += sequence->was_scheduled ? 1 : 0;
    if (sequence->held.is_swapped) continue;
    if (sequence->held.is_suspended) {
      ++num_suspended;
      RETURN_IF_ERROR(CheckCapacity(*sequence));
    } else if (sequence->held.is_kept || sequence->num_computed != 0) {
      return absl::InternalError(absl::StrCat("sequence ", sequence->id, " waits without its blocks"));
    }
  }
  if (num_preempted != num_preempted_) return absl::InternalError("preempted sequences do not add up");
  if (num_suspended != num_suspended_) return absl::InternalError("suspended sequences do not add up");
  return absl::OkStatus();
}

}  // namespace somnus
