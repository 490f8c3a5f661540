#pragma once
// Operators' sleeps and wake-ups of one of the models, which concern the other models, too.
//
// A sleep at level 1 gets host memory for its backup before the sleep begins: backups that nobody has asked
// for are dropped, the least recently used first. Where that does not suffice, the sleep is refused. An
// operator's sleep ends by an operator's wake-up, unless `arrivals` is kWake.
//
// A wake-up waits for room as requests do, but only for operator_wait, and only while its client is there. An
// operator may wake a model in part, for the steps of an update: as much room as the tags need is made, and
// what is awake stays awake until an operator's next call.
//
// Owns nothing: the state of a call is OperatorMarks of the model. Thread safe: every call blocks its caller,
// and takes ModelRecords::mu.

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/several_models/model_records.h"
#include "coordinator/several_models/transitions.h"

namespace somnus {

class OperatorCalls {
 public:
  // Both are borrowed.
  OperatorCalls(ModelRecords* models, Transitions* transitions)
      : models_(*models), transitions_(*transitions) {}

  // ResourceExhausted: the host has no room for the backup; says how many bytes are missing.
  absl::StatusOr<TransitionReport> Sleep(ModelRecord* model, const SleepRequest& request)
      ABSL_LOCKS_EXCLUDED(models_.mu);
  // Unavailable: other models leave the model no room now, but may later.
  absl::StatusOr<TransitionReport> WakeUp(ModelRecord* model, const WakeUpCall& call)
      ABSL_LOCKS_EXCLUDED(models_.mu);

 private:
  // Waits until host memory for a backup of the model's weights is free.
  absl::Status MakeBackupRoom(ModelRecord* model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  // Waits until no backup is being dropped any more, or the deadline has passed.
  void AwaitDrops(const OperatorDeadline& deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  // Sets the marks of a sleep that begins. Returns the most host memory that KV blocks may take while the
  // model sleeps; not set: as much as the host tier has.
  std::optional<int64_t> MarkSleep(ModelRecord* model, const SleepRequest& request,
                                   OperatorMarks::SleepUnderWay* sleep)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);

  // Waits until no other wake-up of the model is under way.
  absl::Status AwaitTurn(const ModelRecord& model, const OperatorDeadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  // Waits for the end of the wake-up that the model's marks name. False: the client has left before it began.
  bool AwaitWakeUp(const ModelRecord& model, const OperatorDeadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  absl::StatusOr<TransitionReport> TakeResult(ModelRecord* model, const OperatorDeadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  absl::Status LateWakeError(const ModelRecord& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);

  ModelRecords& models_;
  Transitions& transitions_;
};

}  // namespace somnus
