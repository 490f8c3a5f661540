#pragma once
// The options of an engine that several replicas serve. Plain values.

#include "absl/time/time.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/executor/executor.h"

namespace somnus {

struct ReplicaOptions {
  // Equal over replicas but for residency and the number of KV blocks. The queue's bounds are the bounds of
  // all replicas together; the set itself sets log_name, data_parallel_rank and hand_over.
  EngineOptions engine;
  Executor* executor = nullptr;
};

// How failed replicas are tried again.
struct ReplicaRetry {
  absl::Duration first_pause = absl::InfiniteDuration();  // infinite: failed replicas are not tried again
  absl::Duration longest_pause = absl::Minutes(10);
  // Healthy workers are replaced, too, since a healthy worker may be the cause of the failure.
  bool restart_workers = true;
};

}  // namespace somnus
