#pragma once
// The models that share the devices: their records, the mutex that guards the records, and the signal by
// which events wake the thread of SharedDevices.
//
// Ownership: owns the records. Every part of SharedDevices borrows this object, and locks `mu` for every read
// and change. Invariants: `mu` is never held while an engine is called, except for the engine's state and its
// Stats; all models are added before SharedDevices::Start.

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/several_models/model_record.h"
#include "coordinator/several_models/residency_policy.h"
#include "coordinator/several_models/shared_devices_options.h"

namespace somnus {

class ModelRecords {
 public:
  explicit ModelRecords(SharedDevicesOptions options) : options_(std::move(options)) {}

  const SharedDevicesOptions& options() const { return options_; }
  MonotonicTime now() const { return options_.now(); }

  ModelRecord* Add(SharingModel options) ABSL_LOCKS_EXCLUDED(mu);
  const std::vector<std::unique_ptr<ModelRecord>>& all() const { return models_; }
  ModelRecord& at(int index) const { return *models_[index]; }
  // The policy's views of the models, by index.
  std::vector<ModelView> Views() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The names of the models that hold all of their device memory.
  std::string AwakeNames() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Something has happened: the thread looks at the models. Thread safe.
  void Wake() { mail_.Wake(); }
  // For the thread: returns after `duration`, or as soon as Wake was called since the last wait.
  void WaitFor(absl::Duration duration) { mail_.WaitFor(duration); }

  // Ends all waits. Nothing is decided any more.
  void Stop() ABSL_LOCKS_EXCLUDED(mu);
  bool stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopped_; }
  // The next time at which an operator's call gives up; calls that were to give up by `now` do not count.
  MonotonicTime NextDeadline(MonotonicTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  mutable absl::Mutex mu;

 private:
  friend class OperatorDeadline;

  const SharedDevicesOptions options_;
  LoopMail mail_;
  std::vector<std::unique_ptr<ModelRecord>> models_;
  std::multiset<MonotonicTime> deadlines_ ABSL_GUARDED_BY(mu);  // of operators' calls that wait
  bool stopped_ ABSL_GUARDED_BY(mu) = false;
};

// The time at which an operator's call that waits gives up: operator_wait after the deadline was made. The
// thread of SharedDevices locks the mutex at that time, so that the call looks at the clock. ModelRecords::mu
// must be held when a deadline is made and when it is destroyed.
class OperatorDeadline {
 public:
  explicit OperatorDeadline(ModelRecords* models)
      : models_(*models), at_(models_.deadlines_.insert(models_.now() + models_.options().operator_wait)) {}
  ~OperatorDeadline() { models_.deadlines_.erase(at_); }
  OperatorDeadline(const OperatorDeadline&) = delete;

  bool has_passed() const { return models_.now() >= *at_; }

 private:
  ModelRecords& models_;
  const std::multiset<MonotonicTime>::iterator at_;
};

// The error of a call that waits while the server ends.
absl::Status AboutToEndError();

}  // namespace somnus
