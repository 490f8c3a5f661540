#pragma once
// Changes of the weights on all ranks of an epoch: a reload from a checkpoint, or an update whose tensors a
// client sends (proto/worker.proto).
//
// Changes are not atomic: an error may leave ranks with different weights, which must not be served. The
// outcome says so (WeightsOutcome::untouched is false), and a later reload or update brings all ranks to the
// same weights again.
//
// Thread safety: Reload, BeginUpdate and FinishUpdate block, and are for one thread at a time; Send is for a
// second thread, CancelUpdate for any.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/executor/collective_calls.h"
#include "coordinator/executor/executor_options.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/weight_streams.h"
#include "coordinator/residency/weights.h"
#include "proto/worker.pb.h"

namespace somnus {

class GroupWeights {
 public:
  // All are borrowed. `workers`: by rank.
  GroupWeights(const CollectiveCalls* calls, FailureLatch* latch, const std::vector<WorkerLink>* workers,
               const ExecutorOptions& options)
      : calls_(*calls),
        workers_(*workers),
        options_(options),
        streams_(workers, latch, calls->group_epoch(), options.now) {}

  // As Executor (executor.h) says.
  WeightsOutcome Reload(const std::string& path, int64_t version);
  WeightsOutcome BeginUpdate(const std::string& update_id, const std::string& port_token = "",
                             const std::vector<v1::WeightChunk>& tensors = {});
  absl::Status Send(const std::string& update_id, v1::WeightChunk chunk) {
    return streams_.Send(update_id, std::move(chunk));
  }
  WeightsOutcome FinishUpdate(int64_t version, const std::optional<ReceivedWeights>& expected = std::nullopt);
  void CancelUpdate() { streams_.Cancel(); }
  // To be called again and again: an update ends where a rank takes no chunk for lifecycle_timeout.
  void Watch() { streams_.CancelWhereStuck(options_.lifecycle_timeout); }

  // Makes the weights of all ranks stale that are not stale by their snapshots. False: there was no such
  // rank.
  absl::StatusOr<bool> MakeStale(const std::vector<v1::WorkerSnapshot>& snapshots);
  // A rank may still be reading its weights. Thread safe.
  bool reads_weights() const { return reads_weights_.load(); }

 private:
  // Without `ports` no rank opens an update port.
  std::vector<absl::Status> Begin(const std::string& update_id, const std::vector<bool>& ranks,
                                  const std::string& port_token, const std::vector<v1::WeightChunk>& tensors,
                                  std::vector<v1::UpdatePort>* ports) const;
  absl::Status CheckFingerprints(const std::vector<v1::WorkerReloadWeightsResponse>& responses) const;

  const CollectiveCalls& calls_;
  const std::vector<WorkerLink>& workers_;
  const ExecutorOptions options_;
  std::atomic<bool> reads_weights_{false};
  WeightStreams streams_;
  std::string update_id_;  // of the update that has begun
};

}  // namespace somnus
