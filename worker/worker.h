#pragma once
// One rank's lifecycle and epochs, as proto/worker.proto describes them:
//   Created --LoadModel--> Loaded --AllocateKvCache--> Awake <--transitions--> Asleep; a failed load, step
//   or collective --> Failed; Fence begins an epoch in every state.
//
// Owns the device, the memory, the communicator and the model, and the one thread that uses them. Thread
// safety: all methods are thread safe and run one after another on that thread, in the order of the calls;
// GetStatus, Snapshot, CheckEpoch, CheckShutdown, Abort and last_step_id return at once, whatever runs, and
// Fence within its patience. Errors: FailedPrecondition names the epochs where the request's is not the
// worker's, or the state; a Failed worker returns its first error.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/vmm_driver.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/checkpoint_backup.h"
#include "worker/comm/epoch_communicator.h"
#include "worker/comm/tcp_socket.h"
#include "worker/epoch_fence.h"
#include "worker/kv_host_tier.h"
#include "worker/lifecycle.h"
#include "worker/load_options.h"
#include "worker/placement.h"
#include "worker/runner/model_runner.h"
#include "worker/runner_thread.h"
#include "worker/transition_meter.h"
#include "worker/weight_prefetch.h"
#include "worker/weights_record.h"
#include "worker/worker_parts.h"

namespace somnus {

class Worker {
 public:
  Worker(const WorkerOptions& options, WorkerParts parts);
  // Aborts the group, so that nothing hangs, and waits for the calls that still run.
  ~Worker();

  // Begins `epoch`, and calls `end_streams`, which ends the step streams of older ones. From then on nothing
  // of an older epoch is done, also not what was queued. Then it waits until what still runs has ended, and
  // drops the batch state and the group. DeadlineExceeded after `patience`: the epoch has begun, but the
  // worker serves nothing of it until a Fence of it has succeeded.
  absl::StatusOr<v1::WorkerSnapshot> Fence(int64_t epoch, absl::Duration patience,
                                           const std::function<void()>& end_streams);
  // Ok for a request of the worker's epoch, and for a Shutdown of no older epoch.
  absl::Status CheckEpoch(int64_t epoch) const { return fence_.Check(epoch); }
  absl::Status CheckShutdown(int64_t epoch) const { return fence_.CheckShutdown(epoch); }

  // Prepares for JoinGroup. With a listen_host: opens a port there. Otherwise: makes NCCL's unique id, which
  // the coordinator hands to every rank, or none where there is no NCCL.
  absl::StatusOr<v1::NewGroupResponse> NewGroup(const v1::NewGroupRequest& request);
  // Returns the last event of the stream; `progress` as ModelRunner::Progress. Waits for no other rank.
  absl::StatusOr<v1::LoadModelEvent> LoadModel(const v1::LoadModelRequest& request,
                                               const ModelRunner::Progress& progress);
  // Blocks until the whole group has joined. After an error a new epoch is needed.
  absl::Status JoinGroup(const v1::JoinGroupRequest& request);
  absl::StatusOr<v1::ProfileResponse> Profile(const v1::ProfileRequest& request);
  // Returns the bytes of this rank's KV cache. ResourceExhausted leaves the worker Loaded: a smaller one can
  // be tried.
  absl::StatusOr<int64_t> AllocateKvCache(const v1::AllocateKvCacheRequest& request);
  // FailedPrecondition: the worker is neither awake nor asleep, a transition is prepared, or a block that
  // would lose its memory is in use. Where one would that outlives a sleep, all of these are forgotten: their
  // owner, the coordinator, has forgotten them.
  absl::StatusOr<v1::ResizeKvCacheResponse> ResizeKvCache(const v1::ResizeKvCacheRequest& request);
  // Waits for a step and makes its reply; an error is in the reply. To be called once, from any thread.
  using AwaitReply = std::function<v1::StepReply()>;
  // Calls `launched` on the runner thread once the step is queued on the device. The next step may be
  // launched before this one's reply is awaited; replies must be awaited in order.
  void ExecuteAsync(v1::StepRequest request, std::function<void(AwaitReply)> launched);
  // Runs a fixed prompt with all ranks, between steps (ModelRunner::SelfCheck).
  absl::StatusOr<v1::SelfCheckResponse> SelfCheck(const v1::SelfCheckRequest& request);
  // A transition, a sleep or a wake-up, in its phases (proto/worker.proto). After an error of Prepare nothing
  // has changed. The worker is awake once every tag is resident.
  absl::StatusOr<v1::PlanResponse> Plan(const v1::PlanRequest& request);
  absl::Status Prepare(const v1::PrepareRequest& request);
  absl::StatusOr<v1::CommitResponse> Commit(const v1::CommitRequest& request);
  absl::Status AbortTransition(const v1::AbortRequest& request);
  // While weights of a checkpoint sleep, discarded or with it as their backup: begins to bring their bytes
  // into the page cache, unless it has begun since they fell asleep. Returns at once; a wake-up ends it.
  // Otherwise it does nothing.
  absl::StatusOr<v1::PrefetchResponse> Prefetch(const v1::PrefetchRequest& request);

  // Weights that are replaced in place (proto/worker.proto, "Weights"); no step runs while they are stale.
  absl::StatusOr<v1::WorkerReloadWeightsResponse> ReloadWeights(
      const v1::WorkerReloadWeightsRequest& request);
  absl::Status BeginWeightUpdate(const v1::BeginWeightUpdateRequest& request);
  // A stream of chunks begins. Its number is for the two calls below, which refuse it once a later one has
  // begun: its sender is lost, or does not know better. FailedPrecondition: that update is not under way.
  absl::StatusOr<uint64_t> OpenWeightStream(int64_t epoch, const std::string& update_id);
  // Returns once the chunk was taken, and a tensor that is whole with it is in place.
  absl::Status AddWeights(int64_t epoch, uint64_t stream, const v1::WeightChunk& chunk);
  // To be called at the end of every stream. InvalidArgument: it ended within a tensor, which is dropped.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> CloseWeightStream(int64_t epoch, uint64_t stream);
  // What has come by all streams of that update.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> ReceivedWeights(int64_t epoch,
                                                                  const std::string& update_id);
  absl::Status FinishWeightUpdate(const v1::FinishWeightUpdateRequest& request);

  v1::WorkerStatusResponse GetStatus() const;
  v1::WorkerSnapshot Snapshot() const;
  // Ends the collectives of the whole group with an error, and the step under way with it; up to that epoch.
  void AbortUpTo(int64_t epoch, const std::string& reason) { communicator_.AbortUpTo(epoch, reason); }
  void Abort(const std::string& reason) { communicator_.Abort(reason); }
  // False when the device was still busy after `timeout`.
  bool WaitIdle(absl::Duration timeout) { return thread_.WaitIdle(timeout); }

  int64_t group_epoch() const { return fence_.epoch(); }
  int64_t weights_version() const { return weights_.version(); }  // 0 before LoadModel, and while stale
  int64_t last_step_id() const { return last_step_id_.load(); }
  bool step_in_progress() const { return steps_in_progress_.load() > 0; }

 private:
  // What Snapshot returns of the load, beside weights_.
  struct Loaded {
    int rank = 0;
    int world_size = 0;
    std::string options_digest;
    int num_blocks = 0;
    int num_mapped_blocks = 0;
    int num_host_blocks = 0;
    int64_t weights_bytes = 0;
    std::string weight_types;
    std::string numa;
    int64_t kv_block_bytes = 0;
  };

  // These run on the runner thread.
  absl::Status BeginEpoch(int64_t epoch);
  absl::StatusOr<v1::LoadModelEvent> DoLoad(const v1::LoadModelRequest& request,
                                            const ModelRunner::Progress& progress);
  // Chooses the worker's CPUs and the NUMA nodes of its memory, and moves the process there.
  absl::Status Place();
  absl::Status OpenDevice(bool batch_invariant);
  // What a checkpoint's files are.
  struct Source {
    std::string fingerprint;
    CheckpointStamp stamp;  // where the checkpoint is the backup
  };
  struct Files {
    Source source;
    std::unique_ptr<Checkpoint> checkpoint;  // opened
  };
  absl::StatusOr<Files> OpenFiles(const std::string& path) const;
  // For a rank whose group sleeps: the weights have addresses, but were not read. Notes that the checkpoint
  // is their backup, or that the weights are discarded.
  void FallAsleepUnread(bool has_source);
  // Sets lifecycle_ by the memory: asleep where any tag sleeps, else awake.
  void SetRestingState();
  // Of LOAD_FORMAT_NONE: those that it may have are read later.
  absl::StatusOr<Files> OpenFilesForLayout(const std::string& path);
  // Reads the weights' source into memory that was discarded, or is stale.
  absl::StatusOr<Source> ReadSource();
  void SetRead(int64_t version, const Source& source);
  // Whether a level-1 sleep would leave the weights to their checkpoint.
  bool CheckpointBacksUp() const;
  absl::Status CheckCheckpointBackup() const;
  void CommitCheckpointBackup(v1::TagReport* weights);
  absl::StatusOr<v1::WorkerReloadWeightsResponse> DoReloadWeights(
      const v1::WorkerReloadWeightsRequest& request);
  absl::StatusOr<Files> OpenForReload(const std::string& path) const;
  absl::Status DoBeginWeightUpdate(const v1::BeginWeightUpdateRequest& request);
  v1::WorkerUpdateWeightsResponse Received() const;
  absl::Status DoFinishWeightUpdate(const v1::FinishWeightUpdateRequest& request);
  // Ok when weights may be written now.
  absl::Status RequireWritableWeights(const char* call) const;
  absl::Status RequireUpdate(const std::string& update_id, const char* call) const;
  absl::Status RequireStream(uint64_t stream) const;
  absl::Status DoJoinGroup(const v1::ParallelConfig& parallel);
  absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(const v1::ParallelConfig& parallel);
  TcpListener TakeOpenPort();
  absl::Status RequireGroup(const char* call) const;
  absl::StatusOr<v1::ProfileResponse> DoProfile();
  absl::StatusOr<int64_t> DoAllocateKvCache(const v1::KvCacheConfig& config, bool defer_graphs);
  absl::StatusOr<v1::ResizeKvCacheResponse> DoResizeKvCache(int32_t num_blocks);
  absl::Status AdmitStep(const v1::StepRequest& request);
  // Ok when the whole group can compute.
  absl::Status RequireComputable(const char* call) const;
  absl::StatusOr<v1::SelfCheckResponse> DoSelfCheck();
  // `refused`: why its swap_outs were not done, where memory lacked.
  absl::StatusOr<std::unique_ptr<PendingStep>> DoLaunch(const v1::StepRequest& request,
                                                        absl::Status* refused);
  absl::Status SwapBlocksOf(const v1::StepRequest& request, absl::Status* refused);
  // A transition that is prepared and neither committed nor aborted.
  struct Prepared {
    uint64_t id = 0;
    int sleep_level = 0;               // 0: a wake-up
    bool reads_weights = false;        // of a wake-up: discarded or stale ones, from their source
    std::vector<std::string> tags;     // that it changes; may be none
    bool checkpoint_backs_up = false;  // of a sleep: the weights, instead of a copy
    Source source;                     // of a wake-up that has read the weights
    v1::PhaseSeconds seconds;
  };
  // An update whose chunks may come.
  struct Update {
    std::string id;
    std::unique_ptr<UpdatedTensors> tensors;
    uint64_t stream = 0;  // the one that may send
  };
  absl::StatusOr<std::vector<std::string>> TagsToChange(const v1::Transition& transition) const;
  // What becomes of the contents of each of its tags.
  std::map<std::string, RestoreMode> SleepModes(const Prepared& prepared) const;
  bool ReadsWeights(const v1::Transition& wake) const;
  absl::StatusOr<v1::PlanResponse> DoPlan(const v1::Transition& transition);
  absl::Status DoPrepare(const v1::PrepareRequest& request);
  void BeginMeter(const v1::Transition& transition, const Prepared& prepared);
  absl::Status MapMemory(const std::vector<std::string>& tags);
  SleepReport ReleaseMemory();
  absl::Status PrepareSleep(Prepared* prepared);
  absl::Status PrepareWake(Prepared* prepared);
  absl::Status FillMapped(Prepared* prepared);
  absl::StatusOr<v1::CommitResponse> DoCommit(uint64_t id);
  void CommitSleep(v1::CommitResponse* response);
  void CommitWake(v1::CommitResponse* response);
  absl::Status DoAbort(uint64_t id);
  void AbortPrepared();
  void AbortMemory(int sleep_level);
  // Copies the blocks that outlive a sleep; undoes what was prepared where that fails.
  absl::Status PrepareKept(const v1::Transition& transition, const Prepared& prepared);
  void CommitKept(const Prepared& prepared, v1::CommitResponse* response);
  // Blocks that outlive a sleep, but not what the coordinator knows of them; and those that steps have
  // swapped out.
  void ForgetKept(bool with_swapped);
  int64_t KvHostBytes() const { return kv_host_bytes_ + kv_ready_bytes_; }  // on any thread
  absl::Status SuspendGroup();
  absl::StatusOr<v1::PrefetchResponse> DoPrefetch(double cpu_share);

  // Runs `work` on the runner thread, where the epoch is checked, and returns its result.
  template <typename Result>
  Result InEpoch(int64_t epoch, const std::function<Result()>& work);
  // Record a failure, the first of which stays, and abort the group, so that the other ranks learn of it at
  // once instead of waiting for a rank that will not come. Fail: of a step or a collective.
  absl::Status Fail(int64_t epoch, const absl::Status& status);
  absl::Status FailForGood(const absl::Status& status);
  std::shared_ptr<SleepableAllocator> allocator() const;

  const WorkerOptions options_;
  const WorkerParts parts_;
  EpochFence fence_;
  Lifecycle lifecycle_;

  // Used by the runner thread alone. The order matters: each member uses those before it.
  v1::LoadModelRequest load_request_;
  LoadOptions load_options_;
  Placement placement_;
  std::unique_ptr<VmmDriver> driver_;
  std::unique_ptr<Device> device_;
  EpochCommunicator communicator_;  // Abort: on any thread
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<KvHostTier> kv_host_tier_;    // once there is a KV cache
  std::unique_ptr<WeightPrefetch> prefetch_;    // of weights that a wake-up will read; may have ended
  LoadFormat load_format_ = LoadFormat::kAuto;  // of the files that reloads read
  CheckpointBackup checkpoint_backup_;          // bytes(): on any thread
  std::optional<Update> update_;                // borrows the runner
  uint64_t last_weight_stream_ = 0;
  int64_t epoch_ = 0;  // the last one that was begun here
  std::optional<Prepared> prepared_;
  uint64_t last_transition_ = 0;   // of the epoch that has ended; an earlier one may not begin any more
  uint64_t last_committed_ = 0;    // of the epoch
  bool stepped_in_epoch_ = false;  // the next step's id is the last one's plus 1
  // The ranks came into the epoch in different states: until its first step they may not do alike.
  bool ranks_may_differ_ = false;

  WeightsRecord weights_;
  TransitionMeter transition_meter_;
  std::atomic<int64_t> last_step_id_{0};
  std::atomic<int> steps_in_progress_{0};
  std::atomic<int64_t> graph_bytes_{0};
  std::atomic<int64_t> kv_host_bytes_{0};   // as KvHostTier::host_bytes, for GetStatus
  std::atomic<int64_t> kv_ready_bytes_{0};  // as KvHostTierOptions::ready_bytes

  mutable absl::Mutex mu_;
  TcpListener open_port_ ABSL_GUARDED_BY(mu_);  // of NewGroup, for the JoinGroup that follows
  Loaded loaded_ ABSL_GUARDED_BY(mu_);
  // Set on the runner thread under mu_, and read there without it; shared so that GetStatus can use it on
  // other threads.
  std::shared_ptr<SleepableAllocator> allocator_;

  RunnerThread thread_;  // last: destroyed before what it uses
};

template <typename Result>
Result Worker::InEpoch(int64_t epoch, const std::function<Result()>& work) {
  std::optional<Result> result;
  thread_.Run([&] {
    // Checked here, because an epoch may begin while the call waits for its turn.
    const absl::Status admitted = fence_.Admit(epoch);
    if (admitted.ok()) {
      result.emplace(work());
    } else {
      result.emplace(admitted);
    }
  });
  return *std::move(result);
}

}  // namespace somnus
