#pragma once
// A lifecycle call of a whole ReplicaSet that is under way. Internal to coordinator/replicas.

#include <limits>

#include "absl/synchronization/mutex.h"
#include "coordinator/replicas/replica_set.h"

namespace somnus {

// From its beginning until its end, the state says what the whole engine is doing. At its end nothing is held
// back any more.
class ReplicaSet::CallScope {
 public:
  CallScope(ReplicaSet* set, SetCall call) : set_(set) { Set(call); }
  ~CallScope() {
    {
      absl::MutexLock lock(&set_->mu_);
      set_->hold_back_from_ = std::numeric_limits<int64_t>::max();
    }
    Set(SetCall::kNone);
  }
  CallScope(const CallScope&) = delete;

  void Set(SetCall call) {
    {
      absl::MutexLock lock(&set_->state_mu_);
      set_->call_ = call;
    }
    set_->UpdateState();
    set_->mail_.Wake();
  }

 private:
  ReplicaSet* const set_;
};

}  // namespace somnus
