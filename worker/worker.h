#pragma once
// One rank's lifecycle and epochs, as proto/worker.proto describes them:
//   Created --LoadModel--> Loaded --AllocateKvCache--> Awake <--transitions--> Asleep; a failed load, step
//   or collective --> Failed; Fence begins an epoch in every state.
//
// Owns the rank's parts, each of which has its own state, and the one thread that uses them: this class
// brings every call to that thread, checks the call's epoch there, and hands the call to a part.
//
// Thread safety: all methods are thread safe and run one after another on that thread, in the order of the
// calls; GetStatus, Snapshot, CheckEpoch, CheckShutdown, NewGroup, Abort and last_step_id return at once,
// also while other calls run, and Fence within its patience. Errors: FailedPrecondition names the epochs
// where the request and the worker are of different epochs, or the state; a Failed worker returns its first
// error.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "worker/load_options.h"
#include "worker/read_turn.h"
#include "worker/runner/model_runner.h"
#include "worker/runner_thread.h"
#include "worker/transition_meter.h"
#include "worker/worker_epoch.h"
#include "worker/worker_kv_cache.h"
#include "worker/worker_load.h"
#include "worker/worker_parts.h"
#include "worker/worker_steps.h"
#include "worker/worker_transition.h"
#include "worker/worker_weights.h"

namespace somnus {

class Worker {
 public:
  Worker(const WorkerOptions& options, WorkerParts parts);
  // Aborts the group, so that nothing hangs, and waits for the calls that still run.
  ~Worker();

  // Begins `epoch`, and calls `end_streams`, which ends the step streams of older epochs. From then on no
  // work of an older epoch is done, queued work included. Then Fence waits until the work under way has
  // ended, and drops the batch state and the group. DeadlineExceeded after `patience`: the epoch has begun,
  // but the worker serves no request of it until a Fence of the same epoch has succeeded.
  absl::StatusOr<v1::WorkerSnapshot> Fence(int64_t epoch, absl::Duration patience,
                                           const std::function<void()>& end_streams);
  // Ok for a request of the worker's epoch, and for a Shutdown of no older epoch.
  absl::Status CheckEpoch(int64_t epoch) const { return epoch_.Check(epoch); }
  absl::Status CheckShutdown(int64_t epoch) const { return epoch_.CheckShutdown(epoch); }

  // Prepares for JoinGroup. With a listen_host: opens a port there. Otherwise: makes NCCL's unique id, which
  // the coordinator hands to every rank, or none where there is no NCCL.
  absl::StatusOr<v1::NewGroupResponse> NewGroup(const v1::NewGroupRequest& request);
  // Returns the last event of the stream; `progress` as ModelRunner::Progress. Waits for no other rank.
  absl::StatusOr<v1::LoadModelEvent> LoadModel(const v1::LoadModelRequest& request,
                                               const ModelRunner::Progress& progress);
  // Blocks until the whole group has joined. After an error a new epoch is needed.
  absl::Status JoinGroup(const v1::JoinGroupRequest& request);
  absl::StatusOr<v1::ProfileResponse> Profile(const v1::ProfileRequest& request);
  // Returns the bytes of this rank's KV cache. ResourceExhausted leaves the worker Loaded: a smaller cache
  // can be tried.
  absl::StatusOr<int64_t> AllocateKvCache(const v1::AllocateKvCacheRequest& request);
  // FailedPrecondition: the worker is neither awake nor asleep, a transition is prepared, or a block that
  // would lose its memory is in use. Where a block that outlives a sleep would lose its memory, all such
  // blocks are forgotten: their owner, the coordinator, has forgotten them.
  absl::StatusOr<v1::ResizeKvCacheResponse> ResizeKvCache(const v1::ResizeKvCacheRequest& request);

  using AwaitReply = WorkerSteps::AwaitReply;
  // Calls `launched` on the runner thread once the step is queued on the device. The next step may be
  // launched before this step's reply is awaited; replies must be awaited in order.
  void ExecuteAsync(v1::StepRequest request, std::function<void(AwaitReply)> launched);
  // Masks for a step of that epoch, which may have been launched already. On any thread; returns at once.
  absl::Status AddMasks(int64_t epoch, v1::StepMasks masks) {
    return epoch_.masks()->Put(epoch, std::move(masks));
  }
  absl::StatusOr<v1::SelfCheckResponse> SelfCheck(const v1::SelfCheckRequest& request);

  // A transition, a sleep or a wake-up, in its phases (worker_transition.h). The worker is awake once every
  // tag is resident.
  absl::StatusOr<v1::PlanResponse> Plan(const v1::PlanRequest& request);
  absl::Status Prepare(const v1::PrepareRequest& request);
  absl::StatusOr<v1::CommitResponse> Commit(const v1::CommitRequest& request);
  absl::Status AbortTransition(const v1::AbortRequest& request);
  // While weights of a checkpoint sleep, discarded or with the checkpoint as their backup: begins to bring
  // their bytes into the page cache, unless that has begun since they fell asleep. Returns at once; a wake-up
  // ends the reading. In other states Prefetch does nothing.
  absl::StatusOr<v1::PrefetchResponse> Prefetch(const v1::PrefetchRequest& request);

  // Weights that are replaced in place (proto/worker.proto, "Weights"); no step runs while they are stale.
  absl::StatusOr<v1::WorkerReloadWeightsResponse> ReloadWeights(
      const v1::WorkerReloadWeightsRequest& request);
  absl::Status BeginWeightUpdate(const v1::BeginWeightUpdateRequest& request);
  // A stream of chunks begins, and gets a number for the two calls below, which refuse the number once a
  // later stream has begun (rank_update.h). FailedPrecondition: that update is not under way.
  absl::StatusOr<uint64_t> OpenWeightStream(int64_t epoch, const std::string& update_id);
  // Returns once the chunk was taken, and a tensor that is whole with this chunk is in place.
  absl::Status AddWeights(int64_t epoch, uint64_t stream, const v1::WeightChunk& chunk);
  // To be called at the end of every stream. InvalidArgument: the stream ended within a tensor, which is
  // dropped.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> CloseWeightStream(int64_t epoch, uint64_t stream);
  // The tensors of all streams of that update.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> ReceivedWeights(int64_t epoch,
                                                                  const std::string& update_id);
  absl::Status FinishWeightUpdate(const v1::FinishWeightUpdateRequest& request);
  absl::StatusOr<v1::SetAdaptersResponse> SetAdapters(const v1::SetAdaptersRequest& request);
  // Reads on the caller's thread, while steps and other calls go on: one call at a time, so that a file
  // system that hangs keeps one thread. Without adapters the call drops those of an earlier call at once.
  // Cancelled: `has_left` was true. Aborted: an earlier call has not ended within 2 s.
  absl::Status ReadAdapters(const v1::ReadAdaptersRequest& request, const std::function<bool()>& has_left);

  // Takes its turn part by part, so that steps and other calls come between. Cancelled: `has_left` was true.
  absl::StatusOr<v1::ChecksumWeightsResponse> ChecksumWeights(const v1::ChecksumWeightsRequest& request,
                                                              const std::function<bool()>& has_left);

  v1::WorkerStatusResponse GetStatus() const;
  v1::WorkerSnapshot Snapshot() const;
  // Ends the collectives of the whole group with an error, and the step under way with them. AbortUpTo: where
  // the group is of `epoch` or an older epoch.
  void AbortUpTo(int64_t epoch, const std::string& reason) { epoch_.AbortUpTo(epoch, reason); }
  void Abort(const std::string& reason) { epoch_.Abort(reason); }
  // False when the device was still busy after `timeout`, or a call still read adapters.
  bool WaitIdle(absl::Duration timeout);

  int64_t group_epoch() const { return epoch_.announced(); }
  int64_t weights_version() const { return weights_.record().version(); }  // 0 before LoadModel, while stale
  int64_t last_step_id() const { return steps_.last_id(); }
  bool step_in_progress() const { return steps_.in_progress(); }

 private:
  // Runs `work` on the runner thread, where the epoch is checked, and returns its result.
  template <typename Work>
  auto InEpoch(int64_t epoch, const Work& work) -> decltype(work());
  // On the runner thread:
  absl::Status BeginEpoch(int64_t epoch);
  absl::StatusOr<v1::LoadModelEvent> DoLoad(const v1::LoadModelRequest& request,
                                            const ModelRunner::Progress& progress);

  const WorkerParts parts_;
  TransitionMeter meter_;
  // The order matters: each part uses parts before it.
  WorkerEpoch epoch_;
  WorkerLoad load_;
  WorkerWeights weights_;
  WorkerKvCache cache_;
  WorkerTransition transition_;
  WorkerSteps steps_;
  ReadTurn reading_;
  RunnerThread thread_;  // last: destroyed before what it uses
};

}  // namespace somnus
