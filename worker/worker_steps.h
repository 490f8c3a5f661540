#pragma once
// The rank's steps: which step may come next, its launch on the device, and its reply. The self-check is a
// step in all but its message.
//
// Owns the count of steps; borrows the epoch, the load, the weights and the KV cache. Thread safety: for the
// runner thread alone, but for the AwaitReply that Launch returns, last_id and in_progress, which are for any
// thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "worker/runner/model_runner.h"
#include "worker/worker_epoch.h"
#include "worker/worker_kv_cache.h"
#include "worker/worker_load.h"
#include "worker/worker_weights.h"

namespace somnus {

class WorkerSteps {
 public:
  // Waits for a step and makes its reply; an error is in the reply. To be called once, from any thread.
  using AwaitReply = std::function<v1::StepReply()>;

  // `timeout`: a step that takes longer hangs (base/heartbeat.h).
  WorkerSteps(absl::Duration timeout, WorkerEpoch* epoch, const WorkerLoad* load,
              const WorkerWeights* weights, WorkerKvCache* cache)
      : timeout_(timeout), epoch_(*epoch), load_(*load), weights_(*weights), cache_(*cache) {}

  // Queues the step on the device. Replies must be awaited in order.
  AwaitReply Launch(const v1::StepRequest& request);
  // Runs a fixed prompt with all ranks, between steps (ModelRunner::SelfCheck).
  absl::StatusOr<v1::SelfCheckResponse> SelfCheck();
  // The first step of the epoch may have any id.
  void BeginEpoch() { stepped_in_epoch_ = false; }

  absl::Duration timeout() const { return timeout_; }
  int64_t last_id() const { return last_id_; }
  bool in_progress() const { return num_in_progress_ > 0; }

 private:
  absl::Status Admit(const v1::StepRequest& request);
  // Ok when the whole group can compute.
  absl::Status RequireComputable(const char* call) const;
  // `refused`: why the step's swap_outs were not done, where memory lacked.
  absl::StatusOr<std::unique_ptr<PendingStep>> Queue(const v1::StepRequest& request, absl::Status* refused);

  const absl::Duration timeout_;
  WorkerEpoch& epoch_;
  const WorkerLoad& load_;
  const WorkerWeights& weights_;
  WorkerKvCache& cache_;
  bool stepped_in_epoch_ = false;  // the next step's id must be the last id plus 1
  std::atomic<int64_t> last_id_{0};
  std::atomic<int> num_in_progress_{0};
};

}  // namespace somnus
