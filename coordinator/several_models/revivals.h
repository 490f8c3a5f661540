#pragma once
// Brings up models whose engines have failed: new workers take the places of the workers that ended. A model
// is tried after a pause that doubles with every failure (retry_backoff.h), or by an operator's call. The new
// workers begin asleep, without device memory, so that no other model has to make room; a request wakes the
// model as ever.
//
// Owns nothing: `revival` and `revives` of ModelRecord are the state. Threads: BeginDue is for the thread of
// SharedDevices, with ModelRecords::mu held; Revive blocks its caller. Invariant: a model has one revival at
// a time.

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/monotonic.h"
#include "coordinator/several_models/carrier_threads.h"
#include "coordinator/several_models/model_records.h"

namespace somnus {

class Revivals {
 public:
  // Both are borrowed.
  Revivals(ModelRecords* models, CarrierThreads* threads) : models_(*models), threads_(*threads) {}

  // Begins the revivals that are due. Returns when the next revival is due.
  MonotonicTime BeginDue(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  // Returns once the engine was brought up, or has failed again. Declined: the engine is being brought up.
  absl::Status Revive(ModelRecord* model) ABSL_LOCKS_EXCLUDED(models_.mu);

 private:
  void NoteState(ModelRecord* model, MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);

  ModelRecords& models_;
  CarrierThreads& threads_;
};

}  // namespace somnus
