#pragma once
// The rank's device, memory and model, as LoadModel makes them, and the numbers of the load that Snapshot and
// GetStatus return.
//
// Owns the device, the driver of its memory, the allocator and the runner, of which each uses those before
// it. A load is Begin, OpenDevice and LoadRunner, in this order and once. Begin keeps the request, which does
// not change any more.
//
// Thread safety: for the runner thread alone, but for FillSnapshot, FillStatus and HostBytes, which any
// thread may call at any time.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/vmm_driver.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/comm/epoch_communicator.h"
#include "worker/join_ranks.h"
#include "worker/load_options.h"
#include "worker/placement.h"
#include "worker/runner/model_runner.h"
#include "worker/worker_parts.h"

namespace somnus {

class WorkerLoad {
 public:
  WorkerLoad(const WorkerOptions& worker, const WorkerParts* parts) : worker_(worker), parts_(*parts) {}

  // Checks the request. InvalidArgument names the field.
  absl::Status Begin(const v1::LoadModelRequest& request);
  // Moves the process to its CPUs and NUMA nodes, and opens the device and the memory. Memory of the
  // request's asleep_tags gets addresses alone.
  absl::Status OpenDevice();
  // Loads this rank's part of the model, on the device. The communicator, whose shape this sets, outlives the
  // runner. Returns the last event of the stream but for what the weights are.
  absl::StatusOr<v1::LoadModelEvent> LoadRunner(const Checkpoint& checkpoint, EpochCommunicator* communicator,
                                                const ModelRunner::Progress& progress);
  void DestroyRunner() { runner_.reset(); }
  // As ModelRunner::SetAdapters.
  absl::Status SetAdapters(absl::Span<const v1::WorkerAdapter> adapters);
  // As ModelRunner::AddReadAdapters.
  void AddReadAdapters(std::vector<std::shared_ptr<const HostAdapter>> adapters);

  // Forms a group of ranks on this device (join_ranks.h). `ports`: of this rank, where the ranks have
  // addresses.
  absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(const v1::ParallelConfig& parallel,
                                                          GroupPorts ports,
                                                          std::function<bool()> cancelled) const;

  // After Begin:
  const v1::LoadModelRequest& request() const { return request_; }
  const LoadOptions& options() const { return options_; }
  // False: the weights are taken memory for, and no source is read (LOAD_FORMAT_NONE).
  bool has_source() const { return request_.load_format() != v1::LOAD_FORMAT_NONE; }
  // The weights get addresses, and are not read: the rank's group sleeps.
  bool weights_sleep() const;
  // After OpenDevice:
  Device* device() const { return device_.get(); }
  VmmDriver* driver() const { return driver_.get(); }
  SleepableAllocator* allocator() const { return allocator_.get(); }
  // Names the memory that the device takes, as WorkerParts::memory_pool; empty: there is one.
  std::string MemoryPool() const;
  // After LoadRunner; before it null:
  ModelRunner* runner() const { return runner_.get(); }

  // Host memory of that tag beside backups: the adapters' copies, for the workspace, where their slots are.
  int64_t HostBytes(absl::string_view tag) const;
  void FillSnapshot(v1::WorkerSnapshot* snapshot) const;
  // Returns false while no memory is open.
  bool FillStatus(v1::WorkerStatusResponse* status) const;

 private:
  // Numbers of the load, for other threads.
  struct Loaded {
    int rank = 0;
    int world_size = 0;
    std::string options_digest;
    int64_t weights_bytes = 0;
    std::string weight_types;
    std::string numa;
    int64_t kv_block_bytes = 0;
  };

  absl::Status Place();
  std::shared_ptr<SleepableAllocator> SharedAllocator() const;

  const WorkerOptions worker_;
  const WorkerParts& parts_;
  v1::LoadModelRequest request_;
  LoadOptions options_;
  Placement placement_;
  std::unique_ptr<VmmDriver> driver_;
  std::unique_ptr<Device> device_;
  mutable absl::Mutex mu_;
  // Set on the runner thread under mu_, and read there without mu_; shared so that other threads can use the
  // allocator.
  std::shared_ptr<SleepableAllocator> allocator_;
  Loaded loaded_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ModelRunner> runner_;
  std::atomic<int64_t> adapter_bytes_{0};  // as ModelRunner::adapter_host_bytes, for other threads
};

}  // namespace somnus
