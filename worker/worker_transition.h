#pragma once
// A rank's transitions, a sleep or a wake-up in two phases (proto/worker.proto): Prepare does what can fail,
// and Commit makes the transition happen. After an error of Prepare, and after Abort, nothing has changed. A
// transition that was committed has happened: Abort refuses to take it back.
//
// Owns the transition that is prepared, and the numbers of the transitions that have ended in the epoch: a
// Prepare that comes later than its own end is refused. Borrows the epoch, the load, the weights, the KV
// cache and the meter. For the runner thread alone.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/sleepable_allocator.h"
#include "base/request_bounds.h"
#include "proto/worker.pb.h"
#include "worker/transition_meter.h"
#include "worker/worker_epoch.h"
#include "worker/worker_kv_cache.h"
#include "worker/worker_load.h"
#include "worker/worker_weights.h"

namespace somnus {

class WorkerTransition {
 public:
  WorkerTransition(WorkerEpoch* epoch, const WorkerLoad* load, WorkerWeights* weights, WorkerKvCache* cache,
                   TransitionMeter* meter)
      : epoch_(*epoch), load_(*load), weights_(*weights), cache_(*cache), meter_(*meter) {}

  absl::StatusOr<v1::PlanResponse> Plan(const v1::Transition& transition) const;
  absl::Status Prepare(const v1::PrepareRequest& request);
  absl::StatusOr<v1::CommitResponse> Commit(uint64_t id);
  absl::Status Abort(uint64_t id);

  // A new epoch: aborts the transition that is prepared, and counts transitions anew.
  void BeginEpoch();
  // Sets the lifecycle by the memory: asleep where any tag sleeps, else awake.
  void SetRestingState();

 private:
  // A transition that is prepared and neither committed nor aborted.
  struct Prepared {
    uint64_t id = 0;
    int sleep_level = kAwakeLevel;     // as of v1::Transition
    bool reads_weights = false;        // of a wake-up: discarded or stale weights, from their source
    std::vector<std::string> tags;     // that the transition changes; may be none
    bool checkpoint_backs_up = false;  // of a sleep: the weights, instead of a copy
    WorkerWeights::Source source;      // of a wake-up that has read the weights
    v1::PhaseSeconds seconds;

    bool wakes_up() const { return sleep_level == kAwakeLevel; }
  };

  absl::StatusOr<std::vector<std::string>> TagsToChange(const v1::Transition& transition) const;
  absl::StatusOr<v1::PlanResponse> PlanMemory(const v1::Transition& transition) const;
  // The fate of the contents of each tag that the sleep changes.
  std::map<std::string, RestoreMode> SleepModes(const Prepared& prepared) const;
  absl::Status DoPrepare(const v1::PrepareRequest& request);
  void BeginMeter(const v1::Transition& transition, const Prepared& prepared);
  absl::Status PrepareSleep(const Prepared& prepared);
  absl::Status PrepareWake(Prepared* prepared);
  absl::Status FillMapped(Prepared* prepared);
  void CommitSleep(v1::CommitResponse* response);
  void CommitWake(v1::CommitResponse* response);
  void ReportTags(v1::CommitResponse* response) const;
  void AbortPrepared();
  void AbortMemory(int sleep_level);
  void SetPrepared(std::optional<Prepared> prepared);

  WorkerEpoch& epoch_;
  const WorkerLoad& load_;
  WorkerWeights& weights_;
  WorkerKvCache& cache_;
  TransitionMeter& meter_;
  std::optional<Prepared> prepared_;  // set by SetPrepared alone, which tells the lifecycle
  uint64_t last_ended_ = 0;           // of the epoch; an earlier transition may not begin any more
  uint64_t last_committed_ = 0;       // of the epoch
};

}  // namespace somnus
