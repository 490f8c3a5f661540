// The turn of a lifecycle call of a whole ReplicaSet.

#include "base/monotonic.h"
#include "coordinator/engine/caller.h"
#include "coordinator/replicas/replica_set.h"

namespace somnus {

ReplicaSet::LifecycleLock::LifecycleLock(ReplicaSet* set, const char* name, bool ends_waits)
    : set_(set), name_(name) {
  if (ends_waits) Interrupt(1);
  (void)Take();
  if (ends_waits) Interrupt(-1);
}

ReplicaSet::LifecycleLock::~LifecycleLock() {
  if (status_.ok()) Give();
}

absl::Status ReplicaSet::LifecycleLock::Take() {
  status_ = set_->turns_.Take();
  if (!status_.ok()) return status_;
  const std::shared_ptr<const Caller> caller = CurrentCaller();
  absl::MutexLock lock(&set_->mu_);
  set_->lifecycle_call_ = {.name = name_,
                           .client = caller == nullptr ? "" : caller->name,
                           .began = set_->smallest_.monotonic_now()};
  return status_;
}

void ReplicaSet::LifecycleLock::Give() {
  {
    absl::MutexLock lock(&set_->mu_);
    set_->lifecycle_call_ = LifecycleCallStats();
  }
  set_->turns_.Give();
}

void ReplicaSet::LifecycleLock::Interrupt(int64_t count) {
  absl::MutexLock lock(&set_->mu_);
  set_->num_interruptions_ += count;
  set_->NoteChange();
}

}  // namespace somnus
