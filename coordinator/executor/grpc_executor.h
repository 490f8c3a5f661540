#pragma once
// The Executor over gRPC: one long-lived Execute stream per worker, unary lifecycle calls to all ranks at
// once.
//
// The engine's thread writes a step to every stream and later reads the replies itself (StepStreams): a
// hand-over between threads costs more than the message. A GroupMonitor watches what a blocking read cannot
// see; a process that ended and a heartbeat that stayed away are reported by others (ReportLoss).
//
// Failure is final: the first cause is kept (Health), everything under way is cancelled, and every later call
// returns it. A worker that died is blamed before those that only noticed: when a call fails, the loss of a
// process has a moment to become known before the call's own error counts.
//
// Thread safety: as executor.h says; ReportLoss, ReportStall and RankStatuses from any thread too.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/executor/executor.h"

namespace somnus {

// Where a rank's WorkerService listens. The vector index is the rank.
struct WorkerEndpoint {
  std::string address;  // "unix:/path" or "host:port"
  std::string host;
  int32_t pid = 0;
  v1::DeviceType device_type = v1::DEVICE_TYPE_CPU;
};

struct GrpcExecutorOptions {
  absl::Duration connect_timeout = absl::Seconds(20);
  absl::Duration load_timeout = absl::Hours(2);         // of whatever reads the checkpoint: load, wake from 2
  absl::Duration lifecycle_timeout = absl::Minutes(5);  // allocate, sleep, other wake-ups
  absl::Duration status_timeout = absl::Seconds(10);    // GetStatus of a rank, to learn what became of a call
  absl::Duration blame_grace = absl::Seconds(1);        // for the loss of a process to become known
  MonotonicClock now = MonotonicNow;                    // of step deadlines
};

// What one rank reported at the end of LoadModel.
struct LoadedRank {
  int64_t weights_bytes = 0;
  int64_t kv_block_bytes = 0;
  int64_t available_kv_cache_memory_bytes = 0;
  int64_t graph_bytes = 0;  // of the device, held by its decode graphs
  absl::Duration graph_capture_time;
};

class GrpcExecutor : public Executor {
 public:
  // Starts to dial; AwaitConnections comes before every other call but Abort, ReportLoss and OnFailure.
  // InvalidArgument without workers.
  static absl::StatusOr<std::unique_ptr<GrpcExecutor>> Create(std::vector<WorkerEndpoint> workers,
                                                              const GrpcExecutorOptions& options);

  // Unavailable names the rank that cannot be reached; ReportLoss and Abort end the wait with their reason.
  virtual absl::Status AwaitConnections() = 0;

  // `request` is the same for all ranks; the call fills in all of `parallel` but group_name. `progress` gets
  // the bytes loaded and the bytes to be loaded, summed over ranks; several threads call it, one at a time.
  // An error cancels the other ranks' loading.
  virtual absl::StatusOr<std::vector<LoadedRank>> LoadModel(
      const v1::LoadModelRequest& request, const std::function<void(int64_t, int64_t)>& progress) = 0;
  virtual absl::Status AllocateKvCache(const v1::KvCacheConfig& config) = 0;
  // Returns one entry per rank: an error where a rank does not reply within `timeout`.
  virtual std::vector<absl::StatusOr<v1::WorkerStatusResponse>> RankStatuses(absl::Duration timeout) = 0;
  // Asks every worker to end, and waits for replies no longer than `timeout`. Nothing may be called
  // afterwards.
  virtual void Shutdown(absl::Duration timeout) = 0;

  // A rank is known to be lost: `reason` names it ("rank 1 (pid 77) was killed by signal 9").
  virtual void ReportLoss(const absl::Status& reason) = 0;
  // What Progress returns from now on: a rank that hangs in a step for now, or ok.
  virtual void ReportStall(const absl::Status& stall) = 0;
};

}  // namespace somnus
