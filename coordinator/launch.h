#pragma once
// From flags to a group of workers that hold the model and its KV cache.
//
// Ownership: a WorkerGroup owns the workers' processes, the listener they register at and the executor; its
// destructor ends the workers in order. Interrupt is thread safe, the rest is for one thread.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/model_config.h"
#include "coordinator/block_manager/kv_plan.h"
#include "coordinator/executor/grpc_executor.h"
#include "coordinator/executor/worker_process.h"
#include "coordinator/flags.h"
#include "coordinator/membership/cluster_server.h"
#include "proto/control.pb.h"

namespace somnus {

// "auto" becomes what the checkpoint stores, bfloat16 for every 16-bit and quantized type.
v1::DType ResolveDType(v1::DType requested, StorageType stored);

class WorkerGroup {
 public:
  WorkerGroup() = default;
  ~WorkerGroup() { Stop(); }
  WorkerGroup(const WorkerGroup&) = delete;

  // Opens the listener and starts local workers, without waiting for them.
  absl::Status Start(const Flags& flags);
  // Waits for the group, dials back, loads the model and allocates the cache.
  absl::StatusOr<KvPlan> Load(const Flags& flags, const ModelConfig& config, int32_t max_model_len);
  // Ends whatever Start or Load are waiting for with `reason`.
  void Interrupt(const absl::Status& reason);
  // Workers end: asked, then told, then killed. Idempotent.
  void Stop();

  GrpcExecutor* executor() { return executor_.get(); }
  // After a successful Load, until Stop: what every rank says of itself now. Thread safe.
  std::vector<v1::RankStatus> RankStatuses();

 private:
  absl::StatusOr<std::string> FindBinary(const Flags& flags) const;
  void OnLoss(const absl::Status& reason);
  absl::Status Connect(const Flags& flags);
  absl::Status SettleDevices(v1::DeviceType asked);

  std::string spawn_token_;
  std::vector<v1::RegisterRequest> members_;  // by rank
  std::unique_ptr<ClusterServer> cluster_;
  std::unique_ptr<GrpcExecutor> executor_;
  std::unique_ptr<WorkerProcesses> processes_;

  absl::Mutex mu_;
  absl::Status loss_ ABSL_GUARDED_BY(mu_);                      // the first reason to give up
  GrpcExecutor* told_executor_ ABSL_GUARDED_BY(mu_) = nullptr;  // whom OnLoss tells; null until it exists
};

}  // namespace somnus
