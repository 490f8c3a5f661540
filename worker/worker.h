#pragma once
// One rank's lifecycle, as proto/worker.proto describes it:
//   Created --LoadModel--> Loaded --AllocateKvCache--> Awake <--Sleep/WakeUp--> Asleep; a failed load or step
//   --> Failed.
//
// Owns the device, the memory, the communicator and the model, and the one thread that uses them. Thread
// safety: all methods are thread safe and run one after another on that thread, in the order of the calls;
// GetStatus, Abort and last_step_id return at once, whatever runs. Errors: FailedPrecondition names the
// state; a Failed worker returns its first error.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/vmm_driver.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/comm/communicator.h"
#include "worker/load_options.h"
#include "worker/runner/model_runner.h"
#include "worker/runner_thread.h"

namespace somnus {

struct DeviceGroupOptions;

enum class WorkerState { kCreated, kLoaded, kAwake, kAsleep, kFailed };
const char* WorkerStateName(WorkerState state);

// The parts that a worker makes its model from. Tests pass their own.
struct WorkerParts {
  // Ok when the device can be opened; otherwise as CheckCudaDevice (kernels/cuda/check.h). Starts nothing.
  std::function<absl::Status(const WorkerOptions&)> check_device;
  // Open the device, and the driver of its memory.
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const WorkerOptions&, const CpuDeviceOptions&)>
      open_device;
  std::function<absl::StatusOr<std::unique_ptr<VmmDriver>>(const WorkerOptions&, int num_threads)>
      open_memory;
  // Joins the group of ranks on GPUs; blocks until all have joined. The device outlives the communicator.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const DeviceGroupOptions&, Device*)>
      join_devices;
  std::function<absl::StatusOr<std::unique_ptr<Checkpoint>>(const std::string& path, LoadFormat format)>
      open_checkpoint;
  std::function<absl::StatusOr<std::unique_ptr<ModelRunner>>(const Checkpoint&, const ModelRunnerOptions&,
                                                             Device*, Communicator*, SleepableAllocator*,
                                                             const ModelRunner::Progress&)>
      load_runner;
};
// The parts of the worker binary.
WorkerParts RealWorkerParts();

class Worker {
 public:
  Worker(const WorkerOptions& options, WorkerParts parts);
  // Aborts the group, so that nothing hangs, and waits for the calls that still run.
  ~Worker();

  using BytesByTag = std::map<std::string, int64_t>;

  // Makes NCCL's unique id, which the coordinator hands to every rank's LoadModel and by which ranks on GPUs
  // form their group. Empty where there is no NCCL.
  absl::StatusOr<std::string> NewGroup();
  // Returns the last event of the stream; `progress` as ModelRunner::Progress. Blocks until the whole group
  // has joined.
  absl::StatusOr<v1::LoadModelEvent> LoadModel(const v1::LoadModelRequest& request,
                                               const ModelRunner::Progress& progress);
  // Returns the bytes of this rank's KV cache. ResourceExhausted leaves the worker Loaded: a smaller one can
  // be tried.
  absl::StatusOr<int64_t> AllocateKvCache(const v1::KvCacheConfig& config);
  // Waits for a step and makes its reply; an error is in the reply. To be called once, from any thread.
  using AwaitReply = std::function<v1::StepReply()>;
  // Calls `launched` on the runner thread once the step is queued on the device. The next step may be
  // launched before this one's reply is awaited; replies must be awaited in order.
  void ExecuteAsync(v1::StepRequest request, std::function<void(AwaitReply)> launched);
  // Level 1 keeps the weights in host memory, level 2 keeps nothing. Returns the bytes freed by tag. After an
  // error nothing has changed, unless the worker has failed.
  absl::StatusOr<BytesByTag> Sleep(int level);
  // Maps the regions of `tags` (empty: all) and returns the bytes mapped by tag. The worker is awake once
  // every tag is resident. After an error the regions that this call had mapped sleep again.
  absl::StatusOr<BytesByTag> WakeUp(const std::vector<std::string>& tags);

  v1::WorkerStatusResponse GetStatus() const;
  // Ends the collectives of the whole group with an error; the step under way fails.
  void Abort(const std::string& reason);
  // False when the device was still busy after `timeout`.
  bool WaitIdle(absl::Duration timeout) { return thread_.WaitIdle(timeout); }

  int64_t last_step_id() const { return last_step_id_.load(); }
  bool step_in_progress() const { return steps_in_progress_.load() > 0; }

 private:
  // These run on the runner thread.
  absl::StatusOr<v1::LoadModelEvent> DoLoad(const v1::LoadModelRequest& request,
                                            const ModelRunner::Progress& progress);
  absl::Status OpenDevice(bool batch_invariant);
  absl::Status JoinGroup(const v1::LoadModelRequest& request);
  absl::StatusOr<int64_t> DoAllocateKvCache(const v1::KvCacheConfig& config);
  absl::StatusOr<std::unique_ptr<PendingStep>> DoLaunch(const v1::StepRequest& request);
  absl::StatusOr<BytesByTag> DoSleep(int level);
  absl::StatusOr<BytesByTag> DoWakeUp(const std::vector<std::string>& tags);
  absl::Status FinishWakeUp(const BytesByTag& mapped);

  template <typename Result>
  Result OnRunner(const std::function<Result()>& work);
  // `sleep_level` is 0 but for kAsleep.
  void SetState(WorkerState state, int sleep_level = 0);
  absl::Status RequireState(std::initializer_list<WorkerState> allowed, const char* call) const;
  absl::Status Fail(const absl::Status& status);

  const WorkerOptions options_;
  const WorkerParts parts_;

  // Used by the runner thread alone. The order matters: each member uses those before it.
  v1::LoadModelRequest load_request_;
  LoadOptions load_options_;
  std::unique_ptr<VmmDriver> driver_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ModelRunner> runner_;
  bool weights_lost_ = false;  // a level-2 sleep discarded them, and they were not read again yet

  std::atomic<int64_t> last_step_id_{0};
  std::atomic<int> steps_in_progress_{0};
  std::atomic<int64_t> graph_bytes_{0};

  mutable absl::Mutex mu_;
  WorkerState state_ ABSL_GUARDED_BY(mu_) = WorkerState::kCreated;
  int sleep_level_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  std::string abort_reason_ ABSL_GUARDED_BY(mu_);
  // Set on the runner thread under mu_, and read there without it; shared so that GetStatus and Abort can use
  // them on other threads.
  std::shared_ptr<SleepableAllocator> allocator_;
  std::shared_ptr<Communicator> communicator_;

  RunnerThread thread_;  // last: destroyed before what it uses
};

}  // namespace somnus
