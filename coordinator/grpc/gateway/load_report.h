#pragma once
// How busy an engine is, in the two messages that gateways read: SchedulerLoad, which they ask for, and
// EngineLoad, which goes with the events of the prefix cache. Several replicas are one engine to a gateway,
// since the server chooses the replica. Internal to coordinator/grpc/gateway.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/grpc/gateway/wire.h"

namespace somnus::gateway {

// The growth of a counter per second, over the time between two looks that are at least a second apart.
// Thread safe.
class RateMeter {
 public:
  // Notes the counter, and returns the rate; 0 until the second look.
  double Look(int64_t counter, MonotonicTime now);

 private:
  absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t counter_ ABSL_GUARDED_BY(mutex_) = 0;
  MonotonicTime time_ ABSL_GUARDED_BY(mutex_);
  double rate_ ABSL_GUARDED_BY(mutex_) = 0;
};

// `max_num_seqs`: of all replicas together; `rate`: generated tokens per second.
void FillLoad(const EngineStats& stats, int32_t max_num_seqs, double rate, wire::SchedulerLoad* load);
void FillLoad(const EngineStats& stats, int32_t max_num_seqs, double rate, common::EngineLoad* load);

}  // namespace somnus::gateway
