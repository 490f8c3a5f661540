#pragma once
// The rank's KV cache: its size, and its blocks in the host tier, which steps swap and which outlive a sleep.
//
// Owns the host tier; borrows the epoch and the load, whose runner has the cache itself. The transition calls
// PrepareKept, CommitKept and AbortKept in its phases.
//
// Thread safety: for the runner thread alone, but for host_bytes, graph_bytes and FillSnapshot, which any
// thread may call.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "allocator/byte_meter.h"
#include "proto/worker.pb.h"
#include "worker/kv_host_tier.h"
#include "worker/worker_epoch.h"
#include "worker/worker_load.h"

namespace somnus {

class WorkerKvCache {
 public:
  // `meter` counts the bytes that a transition copies.
  WorkerKvCache(WorkerEpoch* epoch, const WorkerLoad* load, ByteMeter* meter)
      : epoch_(*epoch), load_(*load), meter_(meter) {}

  // Measures the memory for the cache, with all ranks.
  absl::StatusOr<v1::ProfileResponse> Profile();
  // Returns the bytes of the cache that have memory.
  absl::StatusOr<int64_t> Allocate(const v1::KvCacheConfig& config, bool defer_graphs);
  absl::StatusOr<v1::ResizeKvCacheResponse> Resize(int32_t num_blocks);
  // Before the runner is destroyed.
  void DestroyHostTier() { tier_.reset(); }

  // A step begins: queues its swaps. `refused`: why its swap_outs were not done, where memory lacked.
  absl::Status BeginStep(const v1::StepRequest& request, absl::Status* refused);

  // The bytes of kept blocks that the transition copies.
  int64_t CopyBytes(const v1::Transition& transition) const { return tier_->CopyBytes(transition); }
  // Copies the blocks that outlive the transition, which changes `tags`: before a sleep the memory can still
  // be read, before the end of a wake-up it is mapped. After an error nothing is prepared.
  absl::Status PrepareKept(const v1::Transition& transition, const std::vector<std::string>& tags);
  // The transition has happened. Corrects the report of the cache, and the seconds of the response.
  void CommitKept(int sleep_level, const std::vector<std::string>& tags, v1::CommitResponse* response);
  // The transition that was prepared has not happened.
  void AbortKept();
  // Forgets the blocks that outlive a sleep. The coordinator may still know of them.
  void ForgetKept();
  // Forgets also the blocks that steps have swapped out.
  void ForgetAll();

  int64_t host_bytes() const { return tier_bytes_ + ready_bytes_; }
  int64_t graph_bytes() const { return graph_bytes_; }
  void FillSnapshot(v1::WorkerSnapshot* snapshot) const;

 private:
  // Blocks, the null block among them.
  struct Blocks {
    int all = 0;
    int mapped = 0;
    int host = 0;
  };

  absl::Status Check(const v1::KvCacheConfig& config) const;
  void PublishTierBytes() { tier_bytes_ = tier_->host_bytes(); }

  WorkerEpoch& epoch_;
  const WorkerLoad& load_;
  ByteMeter* const meter_;
  std::unique_ptr<KvHostTier> tier_;     // once there is a cache
  std::atomic<int64_t> tier_bytes_{0};   // as KvHostTier::host_bytes, for other threads
  std::atomic<int64_t> ready_bytes_{0};  // as KvHostTierOptions::ready_bytes
  std::atomic<int64_t> graph_bytes_{0};
  mutable absl::Mutex mu_;
  Blocks blocks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
