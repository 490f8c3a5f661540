#include "coordinator/several_models/operator_marks.h"

#include <utility>

namespace somnus {

bool IsResident(EngineState state) {
  return state == EngineState::kAwake || state == EngineState::kPausing || state == EngineState::kPaused;
}

void OperatorMarks::EndStage(EngineState state) {
  if (staged_ && IsResident(state)) staged_ = held_asleep_ = false;
}

OperatorMarks::SleepUnderWay OperatorMarks::BeginSleep(bool backs_up) {
  Hold();
  return {.backs_up = backs_up,
          .was_staged = std::exchange(staged_, false),
          .was_held = std::exchange(held_asleep_, holds_requests_)};
}

void OperatorMarks::Promise(const SleepUnderWay& sleep, std::optional<int64_t> kept_bytes) {
  num_promised_backups_ += sleep.backs_up;
  promised_kept_bytes_ = kept_bytes.value_or(promised_kept_bytes_);
}

void OperatorMarks::EndSleep(const SleepUnderWay& sleep, bool slept, int level, const Engine& engine) {
  num_promised_backups_ -= sleep.backs_up;
  promised_kept_bytes_ = 0;
  Release();
  staged_ = (sleep.was_staged || slept) && !engine.Stats().residency.fully_asleep();
  if (!slept) {
    held_asleep_ = sleep.was_held && !IsResident(engine.state());
    return;
  }
  held_asleep_ = holds_requests_;  // also where a wake-up that came before the sleep has reset the mark
  level_is_asked_ = level == 1;
}

void OperatorMarks::Want(const WakeUpCall& call) {
  wanted_ = OperatorWake{.call = call, .was_held = held_asleep_, .id = ++last_wake_id_, .result = {}};
  if (call.stages) held_asleep_ = false;
}

void OperatorMarks::NoteResult(const OperatorWake& wake, const absl::StatusOr<TransitionReport>& result,
                               const Engine& engine) {
  if (!wanted_.has_value() || wake.id != wanted_->id) return;
  wanted_->result = result;
  // The stage is noted before anything else is decided: requests do not wake the other tags.
  if (wanted_->call.stages) NoteStage(wanted_->was_held, engine.Stats());
}

void OperatorMarks::EndWake(const Engine& engine) {
  const OperatorWake wake = *std::move(wanted_);
  wanted_.reset();
  if (wake.call.stages) NoteStage(wake.was_held, engine.Stats());
}

// Memory that an operator's call has left half awake waits for the operator's next call. A call that has
// woken nothing holds only what was held before the call, or by a sleep that has come since.
void OperatorMarks::NoteStage(bool was_held, const EngineStats& stats) {
  const bool sleeps = !IsResident(stats.state);
  staged_ = sleeps && !stats.residency.fully_asleep();
  const bool is_held = staged_ || was_held || held_asleep_;
  held_asleep_ = sleeps && is_held && holds_requests_;
}

}  // namespace somnus
