#pragma once
// The local workers that an earlier coordinator left: which workers have registered at this coordinator, and
// which workers go on. Workers may register as soon as the listener is open, and so before Await is called.
//
// Thread safe: workers register on gRPC's threads.

#include <sys/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "base/process_id.h"
#include "coordinator/group/run_state.h"
#include "coordinator/membership/adoption.h"

namespace somnus {

class LeftWorkers {
 public:
  // `left`: the processes that run, from the group file. Called once, before any other call.
  void Expect(const ProcessesByRank& left);

  // The process `pid` registers. `decide` tells from the rank whether the worker goes on, and is called under
  // the lock, so that no worker is adopted after Await has already counted the worker as not adopted.
  // nullopt: the process was not left, or comes too late.
  std::optional<Adoption> Decide(pid_t pid, const std::function<Adoption(int rank)>& decide);

  struct Outcome {
    ProcessesByRank adopted;        // have registered, and go on
    std::vector<ProcessId> others;  // have to end
  };
  // Waits until all have registered, for `patience` at most. A worker that comes later is expected no more.
  Outcome Await(absl::Duration patience);

  int num_left() const;
  int num_adopted() const;

 private:
  mutable absl::Mutex mu_;
  ProcessesByRank left_ ABSL_GUARDED_BY(mu_);
  ProcessesByRank missing_ ABSL_GUARDED_BY(mu_);  // have not registered
  ProcessesByRank adopted_ ABSL_GUARDED_BY(mu_);
  StopSignal all_came_;  // stopped when no worker is missing
};

}  // namespace somnus
