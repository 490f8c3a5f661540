#pragma once
// Carries out what residency_policy.h decides: each decision has a thread while the decision lasts.
//
// A wake-up that fails is tried again after growing pauses, and after a few failures requests get the error
// (wake_retries.h). A sleep that fails makes the model stay for a while, which is longer after every failure
// (retry_backoff.h). Every decision is logged, and told to the model's on_decision.
//
// Owns nothing: the state of a decision is ModelTransition of the model. Threads: ModelRecords::mu is held
// for Begin and NoteSleep; everything else runs on a thread of CarrierThreads.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/residency/transition_report.h"
#include "coordinator/several_models/carrier_threads.h"
#include "coordinator/several_models/model_records.h"
#include "coordinator/several_models/residency_policy.h"

namespace somnus {

class Transitions {
 public:
  // Both are borrowed.
  Transitions(ModelRecords* models, CarrierThreads* threads) : models_(*models), threads_(*threads) {}

  void Begin(const ResidencyDecision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  // Sleeps at level 2 where the backup of a sleep finds no room on the host or on a disk, unless no
  // checkpoint has the weights. Blocks until the engine sleeps or stays as it was.
  absl::StatusOr<TransitionReport> SleepAsDeepAsNeeded(ModelRecord* model, SleepRequest request)
      ABSL_LOCKS_EXCLUDED(models_.mu);
  // A sleep of the model has ended, of a decision or of an operator.
  void NoteSleep(ModelRecord* model, const absl::StatusOr<TransitionReport>& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);

 private:
  void CarryOut(ModelRecord* model, const ResidencyDecision& decision, int64_t id)
      ABSL_LOCKS_EXCLUDED(models_.mu);
  // Tells once that the model sleeps at level 2 for lack of room, until a sleep at level 1 has gone well.
  void TellNoRoom(ModelRecord* model, const absl::Status& error) ABSL_LOCKS_EXCLUDED(models_.mu);
  // Blocks until the engine has done what the decision says.
  absl::StatusOr<TransitionReport> Call(ModelRecord* model, const ResidencyDecision& decision)
      ABSL_LOCKS_EXCLUDED(models_.mu);
  absl::StatusOr<TransitionReport> CallWakeUp(ModelRecord* model) ABSL_LOCKS_EXCLUDED(models_.mu);
  void Prefetch(ModelRecord* model) ABSL_LOCKS_EXCLUDED(models_.mu);
  MonotonicTime WaitingSince(const ModelRecord& model) ABSL_LOCKS_EXCLUDED(models_.mu);
  // `waiting_since`: of the first request that the model wakes for; in the future: of none. Returns the error
  // that ends the requests which wait for the model; ok: the requests go on or wait.
  absl::Status NoteWakeUp(ModelRecord* model, const absl::StatusOr<TransitionReport>& report,
                          absl::Duration time, MonotonicTime waiting_since)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  absl::Status NoteFailedWakeUp(ModelRecord* model, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);

  ModelRecords& models_;
  CarrierThreads& threads_;
};

}  // namespace somnus
