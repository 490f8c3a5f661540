#include "coordinator/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/request_progress.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {
namespace {

int64_t LongPrefillTokens(const SchedulerOptions& options) {
  if (options.long_prefill_token_threshold > 0) return options.long_prefill_token_threshold;
  return std::max(1, options.max_num_batched_tokens / 2);
}

// Checks how much a sequence that grows to `num_tokens` tokens adds to a step's messages.
absl::Status CheckMessageSize(const SchedulerOptions& options, const SamplingParams& sampling,
                              int64_t num_tokens) {
  if (std::max(sampling.num_logprobs, sampling.num_prompt_logprobs) > kMaxStepLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs: at most ", kMaxStepLogprobs, " alternatives can be had"));
  }
  const int64_t tokens = NewSequenceBytes(num_tokens, options.blocks.block_size);
  const int64_t parameters = StepSamplingBytes(sampling);
  if (tokens + parameters <= options.max_sequence_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      tokens > parameters ? "prompt" : LargestSamplingField(sampling), ": the request takes up to ",
      tokens + parameters, " bytes of a step, of which one sequence has ", options.max_sequence_bytes));
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      long_prefill_tokens_(LongPrefillTokens(options)),
      blocks_(options.blocks),
      speculation_(options.speculation, options.max_model_len),
      waiting_(options.policy == SchedulingPolicy::kPriority ? options.priority_aging_steps : 0,
               long_prefill_tokens_) {
  SOMNUS_CHECK(options.max_num_partial_prefills >= 1 && options.max_long_partial_prefills >= 1);
  for (int32_t slot = options.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

absl::Status Scheduler::Check(const SchedulerOptions& options, const EngineRequest& request) {
  const int64_t prompt_len = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = std::max(0, request.max_tokens);
  if (prompt_len == 0) return absl::InvalidArgumentError("prompt: must have at least one token");
  if (prompt_len + std::min<int64_t>(max_tokens, 1) > options.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: has ", prompt_len, " tokens, which leaves no room for output in max_model_len (",
        options.max_model_len, ")"));
  }
  const int64_t longest = std::min<int64_t>(prompt_len + max_tokens, options.max_model_len);
  const int64_t capacity = TotalBlocks(options.blocks.num_blocks) * options.blocks.block_size;
  if (longest > capacity) {
    return absl::InvalidArgumentError(absl::StrCat("prompt: ", prompt_len, " tokens and max_tokens ",
                                                   max_tokens, " can never fit in the KV cache of ", capacity,
                                                   " tokens"));
  }
  if (request.sampling->beam_search.has_value()) RETURN_IF_ERROR(CheckBeams(options, request));
  return CheckMessageSize(options, *request.sampling, longest);
}

SequencePtr Scheduler::Add(EngineRequest request) {
  SOMNUS_CHECK(!live_.contains(request.id));
  auto sequence = std::make_shared<Sequence>();
  sequence->id = next_sequence_id_++;
  sequence->arrival_step = next_step_id_;
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  if (options_.policy == SchedulingPolicy::kPriority)
    sequence->effective_priority = sequence->request.priority;
  const auto progress = std::exchange(sequence->request.progress, nullptr);
  BeginBeams(progress == nullptr ? nullptr : progress->beams.get(), sequence.get());
  if (progress != nullptr) {
    SetProgress(*progress, sequence.get());
    if (options_.policy != SchedulingPolicy::kPriority) sequence->effective_priority = 0;
    num_preempted_ += sequence->was_scheduled ? 1 : 0;
  }
  LinkFork(sequence);
  JoinChoices(sequence);
  if (options_.accounts != nullptr) sequence->visit = options_.accounts->Enter(sequence->request.user);
  expiries_.Insert(sequence);
  waiting_.Insert(sequence, next_step_id_);
  live_.emplace(sequence->request.id, sequence);
  return sequence;
}

void Scheduler::LeaveRunning(Sequence* sequence) {
  free_slots_.push_back(sequence->slot);
  freed_slots_.push_back(sequence->slot);
  sequence->slot = -1;
  if (sequence->beams != nullptr) ReturnBeamSlots(sequence);
  Speculation::Leave(sequence);
  running_.erase(KeyOf(*sequence));
}

void Scheduler::Finish(const SequencePtr& sequence) {
  if (sequence->state == SequenceState::kRunning) {
    LeaveRunning(sequence.get());
    FreeBlocks(sequence.get(), &blocks_);
  } else {
    waiting_.Erase(sequence.get(), next_step_id_);
    num_preempted_ -= sequence->was_scheduled ? 1 : 0;
    num_suspended_ -= sequence->is_suspended ? 1 : 0;
    if (sequence->is_swapped) DropSwapped(sequence.get());
    sequence->is_suspended ? FreeBlocks(sequence.get(), &blocks_) : blocks_.Withdraw(sequence->id);
    sequence->is_suspended = sequence->is_kept = false;
  }
  LeaveChoices(sequence.get());
  expiries_.Erase(*sequence);
  sequence->state = SequenceState::kFinished;
  sequence->forks.clear();
  sequence->visit.reset();
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

void Scheduler::Preempt(const std::vector<SequencePtr>& all, PreemptionCause cause) {
  const bool swaps = PreemptsBySwap(all, cause);
  for (const SequencePtr& sequence : all) LeaveRunning(sequence.get());
  if (swaps) SwapOut(all);
  for (const SequencePtr& sequence : all) {
    if (!swaps) FreeBlocks(sequence.get(), &blocks_);
    sequence->state = SequenceState::kWaiting;
    waiting_.Insert(sequence, next_step_id_);
    ++num_preempted_;
  }
  stats_.preemptions.Add(cause, swaps);
}

void Scheduler::PreemptAll(PreemptionCause cause) {
  SOMNUS_CHECK(in_flight_.empty());
  while (!running_.empty()) Preempt(RunningChoices(running_.rbegin()->second), cause);
  for (const auto& [key, sequence] : waiting_) {
    if (sequence->is_suspended) PreemptSuspended(SuspendedChoices(sequence, kFirstServiceKey), cause);
  }
}

std::vector<SequencePtr> Scheduler::Recover() {
  std::vector<SequencePtr> sequences;
  absl::flat_hash_set<int64_t> seen;
  for (const InFlightStep& step : in_flight_) {
    for (const ScheduledEntry& entry : step.entries) {
      if (entry.samples && !entry.dropped) --entry.sequence->num_pending;
      const SequencePtr& sequence = entry.owner();
      if (!sequence->finished() && seen.insert(sequence->id).second) sequences.push_back(sequence);
    }
  }
  in_flight_.clear();
  ForgetComputed(CacheLoss::kFailure);
  freed_slots_.clear();
  return sequences;
}

std::vector<EngineRequest> Scheduler::ReleaseAll() {
  SOMNUS_CHECK(running_.empty() && in_flight_.empty());
  std::vector<EngineRequest> requests;
  while (!waiting_.empty()) {
    waiting_.RefreshFirst();
    const SequencePtr sequence = waiting_.begin()->second;
    Finish(sequence);  // before its progress is taken, which counts the wait
    auto progress = std::make_shared<const RequestProgress>(ProgressOf(*sequence));
    requests.push_back(std::move(sequence->request));
    requests.back().progress = std::move(progress);
  }
  return requests;
}

StepPlan Scheduler::FlushFreedSlots() {
  StepPlan plan;
  if (freed_slots_.empty()) return plan;
  plan.request.mutable_freed_slots()->Add(freed_slots_.begin(), freed_slots_.end());
  freed_slots_.clear();
  SendCopies(&plan.request);
  plan.request.set_step_id(next_step_id_++);
  in_flight_.push_back({plan.request.step_id(), {}, {}, {}});
  return plan;
}

absl::Status Scheduler::CheckIntegrity() const {
  RETURN_IF_ERROR(blocks_.CheckIntegrity());
  RETURN_IF_ERROR(CheckSequences());
  return CheckSuspended();
}

absl::Status Scheduler::CheckSome() {
  RETURN_IF_ERROR(blocks_.CheckNextBlocks());
  RETURN_IF_ERROR(CheckSequences());
  return CheckSuspended();
}

absl::Status Scheduler::CheckSequences() const {
  if (live_.size() != running_.size() + waiting_.size())
    return absl::InternalError("sequences do not add up");
  const auto was_scheduled = [](const auto& waiting) { return waiting.second->was_scheduled; };
  if (std::count_if(waiting_.begin(), waiting_.end(), was_scheduled) != num_preempted_)
    return absl::InternalError("preempted sequences do not add up");
  std::vector<bool> taken(options_.max_num_seqs, false);
  const auto take = [&](const Sequence& sequence) {
    if (sequence.slot < 0 || taken[sequence.slot]) return absl::InternalError("a slot is used twice");
    taken[sequence.slot] = true;
    return absl::OkStatus();
  };
  for (const auto& [key, sequence] : running_) {
    RETURN_IF_ERROR(take(*sequence));
    if (sequence->beams != nullptr) {
      for (const SequencePtr& other : sequence->beams->others) RETURN_IF_ERROR(take(*other));
      RETURN_IF_ERROR(CheckGroup(*sequence, blocks_));
    }
    const int64_t capacity =
        static_cast<int64_t>(blocks_.Table(sequence->id).size()) * options_.blocks.block_size;
    if (capacity < sequence->num_computed) {
      return absl::InternalError(
          absl::StrCat("sequence ", sequence->id, " has computed more than its blocks hold"));
    }
  }
  if (free_slots_.size() + std::count(taken.begin(), taken.end(), true) != taken.size())
    return absl::InternalError("slots do not add up");
  const int32_t used = blocks_.used_blocks() - blocks_.pins().num_blocks();
  if (running_.empty() && num_suspended_ == 0 && used != 0) {
    return absl::InternalError(absl::StrCat(used, " blocks are used though nothing runs"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
