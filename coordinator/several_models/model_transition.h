#pragma once
// The decision that is being carried out on one model, and the traces of earlier decisions: times of
// switches, pauses after failures, notes to the policy.
//
// A value of ModelRecord, guarded by ModelRecords::mu. Transitions begins and ends decisions. Invariant:
// `carried` is the operator's wake-up that the decision carries out, and means something only while wakes().

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/residency/engine_state.h"
#include "coordinator/residency/retry_backoff.h"
#include "coordinator/residency/wake_retries.h"
#include "coordinator/several_models/operator_marks.h"
#include "coordinator/several_models/residency_policy.h"

namespace somnus {

struct ModelTransition {
  explicit ModelTransition(const WakeRetryOptions& retry)
      : failed_sleeps(retry.first_pause, retry.longest_pause), retries(retry) {}

  // A decision to wake the model is being carried out.
  bool wakes() const { return decision.has_value() && decision->action == ResidencyAction::kWake; }
  // The operator's wake-up that is being carried out; null: none.
  const OperatorWake* carried_wake() const { return wakes() && carried.has_value() ? &*carried : nullptr; }
  // The model's state for the policy, while its engine is in `state`.
  ModelState State(EngineState state) const;

  // `wake`: the operator's wake-up for which the decision wakes the model, if any. Returns the decision's id.
  int64_t Begin(const ResidencyDecision& begun, const OperatorWake* wake);
  // A later decision may have taken the place of the decision `id`, as a preemption takes the place of a
  // drain.
  void End(int64_t id);
  // A sleep that the decision `action` has led to took `time`. Sleeps of idle and of preempted models are
  // measured: requests spend the time of a drain, a release moves only a part of the memory, and a dropped
  // backup moves none.
  void NoteSleepTime(ResidencyAction action, absl::Duration time);
  // An operator's call has ended, and may have mended the cause of failures: the model need not stay awake
  // because of earlier failures, and the next failure has the first pause again.
  void ForgetFailedSleeps(MonotonicTime now);
  // The decision was not tried, and is taken again after a pause.
  void NoteUntried(MonotonicTime now, absl::Duration pause);

  std::optional<ResidencyDecision> decision;
  std::optional<OperatorWake> carried;  // not set: the wake-up is for requests
  int64_t decision_id = 0;
  bool prefetched = false;                  // since the model fell asleep
  bool stay_told = false;                   // since the model woke
  bool no_room_told = false;                // for a backup; since a sleep at level 1 went well
  std::string sleeps_for;                   // the reason of the last decision to let the model sleep
  absl::Duration sleep_time, wake_up_time;  // as last measured
  MonotonicTime awake_since;                // as ModelView::awake_since
  RetryBackoff failed_sleeps;
  WakeRetries retries;
};

}  // namespace somnus
