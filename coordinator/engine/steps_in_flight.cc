#include "coordinator/engine/steps_in_flight.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/running_clock.h"

namespace somnus {
namespace {

// By how much counters have grown.
template <size_t n>
std::array<int32_t, n> Gains(const std::array<int64_t, n>& counters, const std::array<int64_t, n>& before) {
  std::array<int32_t, n> gains;
  for (size_t i = 0; i < n; ++i) gains[i] = static_cast<int32_t>(counters[i] - before[i]);
  return gains;
}

}  // namespace

StepsInFlight::StepsInFlight(const EngineOptions& options, Executor* executor, Scheduler* scheduler,
                             EngineBoard* board)
    : options_(options),
      executor_(executor),
      scheduler_(*scheduler),
      board_(board),
      deadline_(options.hang_timeout, options.step_timeout),
      preemption_cost_(options.kv_block_bytes / std::max(1, options.world_size)) {}

StepEvent StepsInFlight::Describe(const StepPlan& plan) {
  StepEvent step;
  step.step_id = plan.request.step_id();
  step.num_tokens = plan.num_tokens;
  step.num_sequences = plan.request.sequences_size();
  for (const v1::ScheduledSequence& sequence : plan.request.sequences()) {
    step.num_decodes += sequence.num_tokens() - sequence.num_draft_tokens() == 1 ? 1 : 0;
    step.num_draft_tokens += sequence.num_draft_tokens();
  }
  step.num_new = plan.request.new_sequences_size();
  step.num_forks = plan.request.forks_size();
  step.num_copies = plan.request.copies_size();
  step.num_swap_outs = plan.request.swap_outs_size();
  step.num_swap_ins = plan.request.swap_ins_size();
  const SchedulerStats before = std::exchange(counters_seen_, scheduler_.stats());
  step.preempted_by_swap = Gains(counters_seen_.preemptions.by_swap, before.preemptions.by_swap);
  step.preempted_by_recompute =
      Gains(counters_seen_.preemptions.by_recompute, before.preemptions.by_recompute);
  step.swap_obstacles = Gains(counters_seen_.swaps.obstacles, before.swaps.obstacles);
  step.num_cached_tokens = static_cast<int32_t>(counters_seen_.prefix_cache_hits - before.prefix_cache_hits);
  const int64_t num_refusals = scheduler_.blocks().watermark().num_refusals();
  step.num_watermark_refusals =
      static_cast<int32_t>(num_refusals - std::exchange(watermark_refusals_seen_, num_refusals));
  step.num_running = scheduler_.num_running();
  step.num_waiting = scheduler_.num_waiting();
  step.used_blocks = scheduler_.blocks().pool().num_used();
  step.sent = options_.monotonic_now();
  return step;
}

absl::Status StepsInFlight::Send(StepPlan plan, absl::Duration schedule, int64_t group_epoch) {
  sent_.push_back(Describe(plan));
  sent_.back().group_epoch = group_epoch;
  sent_.back().schedule = schedule;
  if (sent_.size() == 1) board_->NoteAwaitedStep(sent_.front().step_id);
  absl::Status status = executor_->ExecuteAsync(&plan.request);
  scheduler_.Reuse(std::move(plan.request));
  if (status.ok() && sent_.size() == 1) return SendMasks();
  return status;
}

absl::Status StepsInFlight::SendMasks() {
  const MonotonicTime begin = options_.monotonic_now();
  std::optional<v1::StepMasks> masks = scheduler_.TakeMasks();
  if (!masks.has_value()) return absl::OkStatus();
  sent_.front().masks = options_.monotonic_now() - begin;
  return executor_->SendMasks(*std::move(masks));
}

absl::StatusOr<v1::StepReply> StepsInFlight::Wait(int64_t weights_version) {
  replied_ = sent_.front();
  stood_still_ = StoodStill();
  absl::StatusOr<v1::StepReply> reply = executor_->Wait(deadline_.Timeout(replied_.num_tokens));
  sent_.pop_front();
  board_->NoteAwaitedStep(sent_.empty() ? 0 : sent_.front().step_id);
  if (!reply.ok() || reply->weights_version() == weights_version) return reply;
  return absl::InternalError(absl::StrCat("the workers computed with version ", reply->weights_version(),
                                          " of the weights, not ", weights_version));
}

absl::StatusOr<std::vector<SequenceOutput>> StepsInFlight::Apply(const v1::StepReply& reply,
                                                                 StepEvent* step) {
  for (const v1::SampledToken& token : reply.tokens()) {
    if (token.token_id() >= 0 && token.token_id() < options_.vocab_size) continue;
    return absl::InternalError(absl::StrCat("a worker sampled token ", token.token_id(),
                                            " of a vocabulary of ", options_.vocab_size));
  }
  const int64_t num_accepted = scheduler_.speculation().num_accepted_tokens;
  absl::StatusOr<std::vector<SequenceOutput>> outputs = scheduler_.Update(reply);
  if (!outputs.ok()) return outputs;
  ++num_steps_;
  *step = replied_;
  step->num_accepted_tokens =
      static_cast<int32_t>(scheduler_.speculation().num_accepted_tokens - num_accepted);
  step->replied = options_.monotonic_now();
  // The time for which this process stood still is no measure for the steps to come.
  const absl::Duration stood_still = StoodStill() - stood_still_;
  step->duration =
      std::max(absl::ZeroDuration(), step->replied - std::max(step->sent, last_reply_) - stood_still);
  last_reply_ = step->replied;
  Measure(*step);
  return outputs;
}

void StepsInFlight::Measure(const StepEvent& step) {
  deadline_.Observe(step.num_tokens, step.duration);
  const int32_t num_prompt_tokens = step.num_tokens - step.num_decodes;
  if (num_prompt_tokens != 0) board_->NotePrefill(num_prompt_tokens, step.duration, step.replied);
  const bool only_decodes = step.num_tokens > 0 && step.num_tokens == step.num_sequences;
  if (only_decodes) {
    const bool first = decode_step_time_ == absl::ZeroDuration();
    decode_step_time_ = first ? step.duration : (7 * decode_step_time_ + step.duration) / 8;
  }
  preemption_cost_.Observe(step.num_tokens, step.num_swap_outs + step.num_swap_ins, only_decodes,
                           absl::ToDoubleSeconds(step.duration));
  scheduler_.SetPrices(preemption_cost_.prices());
  scheduler_.NoteStepTime(absl::ToDoubleSeconds(step.duration));
}

void StepsInFlight::Clear() {
  sent_.clear();
  board_->NoteAwaitedStep(0);
}

void StepsInFlight::Publish(EngineStats* stats) const {
  stats->num_steps = num_steps_;
  stats->decode_step_time = decode_step_time_;
}

}  // namespace somnus
