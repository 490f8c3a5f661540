#pragma once
// Launches the group of workers that the flags describe, until they hold the model and its KV cache.
//
// Ownership: a WorkerGroup owns the workers' processes, the listener they register at and the executor; its
// destructor ends the workers in order. Interrupt and RankStatuses are thread safe; everything else is for
// one thread.

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

// The type of weights and activations: `requested`, or for "auto" (DTYPE_UNSPECIFIED) float32 where the
// checkpoint stores float32, and bfloat16 for every 16-bit and quantized type.
v1::DType ResolveDType(v1::DType requested, StorageType stored);

class WorkerGroup {
 public:
  WorkerGroup() = default;
  ~WorkerGroup() { Stop(); }
  WorkerGroup(const WorkerGroup&) = delete;

  // Opens the listener and starts local workers, without waiting for them. The error names the flag or the
  // address at fault.
  absl::Status Start(const Flags& flags);
  // Waits for the group, dials back, loads the model and allocates the KV cache. The error names the rank
  // that failed.
  absl::StatusOr<KvPlan> Load(const Flags& flags, const ModelConfig& config, int32_t max_model_len);
  // Makes whatever Start or Load waits for end with `reason`.
  void Interrupt(const absl::Status& reason);
  // Ends the workers: by the Shutdown call, and local ones by SIGTERM and at last by SIGKILL. Idempotent.
  void Stop();

  GrpcExecutor* executor() { return executor_.get(); }
  // Asks every rank for its status; may be called after a successful Load and before Stop. A rank that does
  // not reply within 2 seconds has `error` set. Thread safe.
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
  GrpcExecutor* told_executor_ ABSL_GUARDED_BY(mu_) = nullptr;  // where OnLoss reports; null until it exists
};

}  // namespace somnus
