#include "coordinator/scheduler/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "coordinator/scheduler/step_messages.h"

namespace somnus {

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), blocks_(options.blocks) {
  for (int32_t slot = options.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

absl::Status Scheduler::Check(const SchedulerOptions& options, const EngineRequest& request) {
  const int64_t prompt_len = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = std::max(0, request.sampling.max_tokens);
  if (prompt_len == 0) return absl::InvalidArgumentError("prompt: must have at least one token");
  if (prompt_len + std::min<int64_t>(max_tokens, 1) > options.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: has ", prompt_len, " tokens, which leaves no room for an answer in max_model_len (",
        options.max_model_len, ")"));
  }
  const int64_t longest = std::min<int64_t>(prompt_len + max_tokens, options.max_model_len);
  const int64_t capacity = static_cast<int64_t>(options.blocks.num_blocks - 1) * options.blocks.block_size;
  if (longest > capacity) {
    return absl::InvalidArgumentError(absl::StrCat("prompt: ", prompt_len, " tokens and max_tokens ",
                                                   max_tokens, " can never fit in the KV cache of ", capacity,
                                                   " tokens"));
  }
  return absl::OkStatus();
}

Scheduler::Key Scheduler::KeyOf(const Sequence& sequence) const {
  const int64_t priority = options_.policy == SchedulingPolicy::kPriority ? sequence.request.priority : 0;
  return {priority, sequence.id};
}

SequencePtr Scheduler::Add(EngineRequest request) {
  SOMNUS_CHECK(!live_.contains(request.id));
  auto sequence = std::make_shared<Sequence>();
  sequence->id = next_sequence_id_++;
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  if (sequence->request.deadline != absl::InfiniteFuture()) ++num_deadlines_;
  waiting_.emplace(KeyOf(*sequence), sequence);
  live_.emplace(sequence->request.id, sequence);
  return sequence;
}

void Scheduler::LeaveRunning(Sequence* sequence) {
  blocks_.Free(sequence->id);
  free_slots_.push_back(sequence->slot);
  freed_slots_.push_back(sequence->slot);
  sequence->slot = -1;
  running_.erase(KeyOf(*sequence));
}

void Scheduler::Finish(const SequencePtr& sequence) {
  if (sequence->state == SequenceState::kRunning) {
    LeaveRunning(sequence.get());
  } else {
    waiting_.erase(KeyOf(*sequence));
  }
  if (!sequence->was_scheduled && sequence->request.deadline != absl::InfiniteFuture()) --num_deadlines_;
  sequence->state = SequenceState::kFinished;
  live_.erase(sequence->request.id);
}

SequencePtr Scheduler::Abort(const std::string& request_id) {
  auto it = live_.find(request_id);
  if (it == live_.end()) return nullptr;
  SequencePtr sequence = it->second;
  Finish(sequence);
  return sequence;
}

std::vector<SequencePtr> Scheduler::AbortAll() {
  std::vector<SequencePtr> sequences;
  for (const auto& [key, sequence] : running_) sequences.push_back(sequence);
  for (const auto& [key, sequence] : waiting_) sequences.push_back(sequence);
  for (const SequencePtr& sequence : sequences) Finish(sequence);
  return sequences;
}

std::vector<SequencePtr> Scheduler::Expire(absl::Time now) {
  std::vector<SequencePtr> expired;
  if (num_deadlines_ == 0) return expired;
  for (const auto& [key, sequence] : waiting_) {
    if (!sequence->was_scheduled && sequence->request.deadline <= now) expired.push_back(sequence);
  }
  for (const SequencePtr& sequence : expired) Finish(sequence);
  return expired;
}

absl::Time Scheduler::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (num_deadlines_ == 0) return next;
  for (const auto& [key, sequence] : waiting_) {
    if (!sequence->was_scheduled) next = std::min(next, sequence->request.deadline);
  }
  return next;
}

// Whether the tokens that steps in flight will sample end the sequence for certain.
bool Scheduler::WillFinish(const Sequence& sequence) const {
  if (sequence.num_pending == 0) return false;
  return sequence.num_outputs() + sequence.num_pending >= sequence.request.sampling.max_tokens ||
         sequence.num_tokens() >= options_.max_model_len;
}

StepPlan Scheduler::Schedule() {
  StepPlan plan;
  InFlightStep step;
  int64_t budget = options_.max_num_batched_tokens;
  const bool preempted = ScheduleRunning(&plan, &budget, &step);
  if (!preempted) ScheduleWaiting(&plan, &budget, &step);
  if (plan.empty()) return plan;
  plan.num_tokens = static_cast<int32_t>(options_.max_num_batched_tokens - budget);
  // Only now: a sequence of this very step must not adopt blocks that the step itself fills.
  for (const ScheduledEntry& entry : step.entries) {
    blocks_.Commit(entry.sequence->id, entry.sequence->tokens, entry.sequence->num_computed);
  }
  plan.request.mutable_freed_slots()->Add(freed_slots_.begin(), freed_slots_.end());
  freed_slots_.clear();
  step.step_id = next_step_id_++;
  plan.request.set_step_id(step.step_id);
  in_flight_.push_back(std::move(step));
  return plan;
}

bool Scheduler::ScheduleRunning(StepPlan* plan, int64_t* budget, InFlightStep* step) {
  bool preempted = false;
  for (auto it = running_.begin(); it != running_.end() && *budget > 0; ++it) {
    const SequencePtr sequence = it->second;
    const int64_t num_tokens = WillFinish(*sequence) ? 0 : std::min(sequence->num_to_compute(), *budget);
    if (num_tokens == 0) continue;
    std::vector<int32_t> new_blocks;
    while (!blocks_.Grow(sequence->id, sequence->num_computed + num_tokens, &new_blocks)) {
      const SequencePtr victim = running_.rbegin()->second;
      Preempt(victim);
      preempted = true;
      if (victim == sequence) return true;  // it was the last: nobody is left behind it
    }
    *budget -= num_tokens;
    AddEntry(sequence, num_tokens, std::move(new_blocks), plan, step);
  }
  return preempted;
}

void Scheduler::ScheduleWaiting(StepPlan* plan, int64_t* budget, InFlightStep* step) {
  while (*budget > 0 && !waiting_.empty() && !free_slots_.empty()) {
    const SequencePtr sequence = waiting_.begin()->second;
    // Preempted with a token still in flight: it is sent whole, so all its tokens must be known.
    if (sequence->num_pending > 0) return;
    if (!Admit(sequence, plan)) return;
    const int64_t num_tokens = std::min(sequence->num_to_compute(), *budget);
    *budget -= num_tokens;
    AddEntry(sequence, num_tokens, {}, plan, step);
  }
}

bool Scheduler::Admit(const SequencePtr& sequence, StepPlan* plan) {
  const bool use_cache = !sequence->owes_prompt_logprobs() && !sequence->avoids_prefix_cache;
  const int32_t computed = blocks_.Allocate(sequence->id, sequence->tokens, sequence->request.cache_salt,
                                            use_cache, running_.empty());
  if (computed < 0) return false;
  waiting_.erase(KeyOf(*sequence));
  running_.emplace(KeyOf(*sequence), sequence);
  sequence->state = SequenceState::kRunning;
  sequence->num_computed = computed;
  sequence->num_adopted = computed;
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  if (!sequence->was_scheduled) NoteScheduled(sequence, plan);
  FillNewSequence(*sequence, blocks_.Table(sequence->id), plan->request.add_new_sequences());
  return true;
}

void Scheduler::NoteScheduled(const SequencePtr& sequence, StepPlan* plan) {
  sequence->was_scheduled = true;
  sequence->num_cached = static_cast<int32_t>(sequence->num_computed);
  if (sequence->request.deadline != absl::InfiniteFuture()) --num_deadlines_;
  stats_.prompt_tokens += sequence->prompt_len();
  stats_.prefix_cache_queries += sequence->prompt_len();
  stats_.prefix_cache_hits += sequence->num_computed;
  plan->first_scheduled.push_back(sequence);
}

void Scheduler::AddEntry(const SequencePtr& sequence, int64_t num_tokens, std::vector<int32_t> new_blocks,
                         StepPlan* plan, InFlightStep* step) {
  v1::ScheduledSequence* scheduled = plan->request.add_sequences();
  scheduled->set_slot(sequence->slot);
  scheduled->set_num_tokens(static_cast<int32_t>(num_tokens));
  scheduled->mutable_new_block_ids()->Add(new_blocks.begin(), new_blocks.end());
  const int64_t start = sequence->num_computed;
  ScheduledEntry entry;
  entry.sequence = sequence;
  entry.slot = sequence->slot;
  entry.start = start;
  entry.num_tokens = num_tokens;
  entry.samples = start + num_tokens == sequence->num_tokens();
  entry.adopted = start > 0 && start == sequence->num_adopted;
  sequence->num_computed += num_tokens;
  if (entry.samples) ++sequence->num_pending;
  step->entries.push_back(std::move(entry));
}

// By value: the maps hold what the caller may have named.
void Scheduler::Preempt(SequencePtr sequence) {
  LeaveRunning(sequence.get());
  sequence->num_computed = 0;
  sequence->state = SequenceState::kWaiting;
  waiting_.emplace(KeyOf(*sequence), sequence);
  ++stats_.num_preemptions;
}

void Scheduler::PreemptAll() {
  SOMNUS_CHECK(in_flight_.empty());
  while (!running_.empty()) Preempt(running_.rbegin()->second);
}

StepPlan Scheduler::FlushFreedSlots() {
  StepPlan plan;
  if (freed_slots_.empty()) return plan;
  plan.request.mutable_freed_slots()->Add(freed_slots_.begin(), freed_slots_.end());
  freed_slots_.clear();
  plan.request.set_step_id(next_step_id_++);
  in_flight_.push_back({plan.request.step_id(), {}});
  return plan;
}

absl::Status Scheduler::CheckIntegrity() const {
  RETURN_IF_ERROR(blocks_.CheckIntegrity());
  if (live_.size() != running_.size() + waiting_.size())
    return absl::InternalError("sequences do not add up");
  if (free_slots_.size() + running_.size() != static_cast<size_t>(options_.max_num_seqs)) {
    return absl::InternalError("slots do not add up");
  }
  std::vector<bool> taken(options_.max_num_seqs, false);
  for (const auto& [key, sequence] : running_) {
    if (sequence->slot < 0 || taken[sequence->slot]) return absl::InternalError("a slot is used twice");
    taken[sequence->slot] = true;
    const int64_t capacity =
        static_cast<int64_t>(blocks_.Table(sequence->id).size()) * options_.blocks.block_size;
    if (capacity < sequence->num_computed) {
      return absl::InternalError(
          absl::StrCat("sequence ", sequence->id, " has computed more than its blocks hold"));
    }
  }
  if (running_.empty() && blocks_.used_blocks() != 0) {
    return absl::InternalError(absl::StrCat(blocks_.used_blocks(), " blocks are used though nothing runs"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
