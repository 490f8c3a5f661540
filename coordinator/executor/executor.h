#pragma once
// Collective RPC to all ranks of one model. The engine sees this interface; GrpcExecutor implements it, and
// tests fake it. Used by the engine loop thread alone, except what is said to be thread safe, Abort and the
// callbacks.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/block_manager/kept_block.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/self_check.h"
#include "coordinator/residency/transition_report.h"
#include "coordinator/residency/weights.h"
#include "proto/worker.pb.h"

namespace somnus {

class Executor {
 public:
  virtual ~Executor() = default;

  // Sends a step to every rank and returns; steps are executed in order. The message gets the group's epoch,
  // and is the caller's again. InvalidArgument, and nothing is sent, when it is larger than workers accept.
  virtual absl::Status ExecuteAsync(v1::StepRequest* step) = 0;
  // Waits for the oldest step not yet waited for. Returns rank 0's reply once every rank has replied, with
  // what the others say of swaps: their refusals, and the host memory of all. The
  // first error is the step's error, with the rank in it ("rank 1 (pid 77) was killed by signal 9 (Killed)").
  // DeadlineExceeded after `timeout`.
  virtual absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout) = 0;

  // Transitions. Both calls are collective and all or nothing, and return at once. One runs at a time, with
  // no step under way. The tags, of which there is at least one, are those that the call changes
  // (Residency::ToSleep, ToWake). `done` is called exactly once, on any thread, also within the call; it must
  // not block. Of the report it gets the ranks. After an error either Health says why the group is lost, or
  // every rank is where it was. `host`: of calls that change the KV cache. Kept blocks are copied to the host
  // tier before a sleep of level 1 that releases the cache, and copied back by the wake-up that maps it,
  // which names the same ones; of what steps have swapped out, all that is not named is forgotten.
  using LifecycleDone = std::function<void(absl::StatusOr<TransitionReport>)>;
  virtual void SleepAsync(const SleepSpec& spec, const HostTierBlocks& host, LifecycleDone done) = 0;
  // `reads_weights`: weights that were discarded, or that are stale, are read from their checkpoint; else
  // they are stale afterwards.
  virtual void WakeUpAsync(const std::vector<std::string>& tags, bool reads_weights,
                           const HostTierBlocks& host, LifecycleDone done) = 0;
  // Gives memory to the first num_blocks blocks of every rank's KV cache, and takes it from the others,
  // whether the cache is resident or sleeps. Otherwise as those two calls. `num_before`: how many have it
  // now. Of the report `done` gets each rank's resident bytes of the cache.
  virtual void ResizeKvCacheAsync(int32_t num_blocks, int32_t num_before, LifecycleDone done) = 0;
  // Whether the last sleep or wake-up was committed when the group was lost: then it has happened, and
  // Recover has to bring all ranks to where it leads. Known once the failure is. Thread safe.
  virtual bool committed() const = 0;

  // Every rank computes a fixed prompt, with all tags resident and no step under way (proto/worker.proto). As
  // those of transitions, but `done` gets its own result. An error is a loss of the group, of which Health
  // tells.
  using SelfCheckDone = std::function<void(absl::StatusOr<SelfCheckResult>)>;
  virtual void SelfCheckAsync(SelfCheckDone done) = 0;

  // A hint while weights sleep: every rank begins to bring what it would read of the checkpoint
  // into its host's page cache. Blocks until all have begun; a wake-up does not wait for them. Thread safe.
  virtual absl::Status Prefetch() = 0;
  // What a wake-up of these tags would take, by rank; nothing is changed. Blocks until all ranks have said
  // so. Thread safe.
  virtual absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& tags) = 0;

  // Changes of the weights, whose memory is mapped. Collective, and they return at once; one of these calls,
  // or of those above, runs at a time. `done` is called exactly once, on any thread, also within the call; it
  // must not block. After an error the ranks may have different weights, unless it says `untouched`.
  using WeightsDone = std::function<void(WeightsOutcome)>;
  // Every rank reads the checkpoint at `path`; empty: the one that it has read last. It is an error when they
  // read different files.
  virtual void ReloadWeightsAsync(const std::string& path, int64_t version, WeightsDone done) = 0;
  // An update: the weights are stale on every rank, and SendWeights may be called until it is finished. A
  // token makes the update direct: `done` gets the ranks' update ports, which are open until the update ends.
  // `tensors`: the tensors that will come, without data; where the model lacks such a tensor, the outcome is
  // an error, and nothing has changed.
  virtual void BeginWeightUpdateAsync(const std::string& update_id, const std::string& port_token,
                                      const std::vector<v1::WeightChunk>& tensors, WeightsDone done) = 0;
  // Sends a chunk of that update to every rank. Blocks while one of them takes no more. An error is the
  // update's, and names the rank; FailedPrecondition: that update is not under way. Thread safe, one call of
  // an update at a time.
  virtual absl::Status SendWeights(const std::string& update_id, v1::WeightChunk chunk) = 0;
  // Waits until every rank has all chunks in place, and gives the weights their version. It is an error when
  // not the same has come to all ranks, or not what is expected.
  virtual void FinishWeightUpdateAsync(int64_t version, const std::optional<ReceivedWeights>& expected,
                                       WeightsDone done) = 0;
  // Gives the update up, if one is under way: SendWeights returns. Thread safe, and does not block.
  virtual void CancelWeightUpdate() = 0;

  // Ok while every rank is believed alive; else says which rank failed and why. Thread safe.
  virtual absl::Status Health() const = 0;
  // Ok while every rank gets on with its steps, as far as heartbeats tell; else names a rank that does not,
  // though it may recover. Thread safe.
  virtual absl::Status Progress() const = 0;
  // `callback` is called at most once in an epoch, on any thread, when a rank is lost, whether a call is
  // waiting for it or not; at once when that has already happened. It must not block. An empty function
  // removes the callback: none runs afterwards.
  virtual void OnFailure(std::function<void(absl::Status)> callback) = 0;
  // Ends the call that is waiting, and every later one, with `reason`. Thread safe.
  virtual void Abort(const absl::Status& reason) = 0;

  // The group counts as lost, with `reason`: the call that is waiting ends, and Recover makes the group whole
  // again. Thread safe.
  virtual void LoseEpoch(const absl::Status& reason) = 0;

  // Makes the group whole again after a failure, which ended an epoch, and returns at once; OnRecovered tells
  // how it ended. After success every rank serves the next epoch: no slot is taken, no step is in flight, and
  // the ranks hold what recovered() says. Until then every other call returns the failure. An error is final,
  // and so is the reason of an Abort.
  virtual void Recover(const Held& held) = 0;
  // Ends the workers, which are well, starts others in their places, and goes on as Recover. No call is under
  // way.
  virtual void Restart(const Held& held) = 0;
  // The group is given up: workers that can be replaced end, so that their memory is free. OnRecovered tells
  // `reason` then. A Recover that comes later begins with new workers.
  virtual void Dismiss(const absl::Status& reason) = 0;
  // What the last Recover or Restart that ended well has led to: what it was asked for, but that weights
  // which new workers cannot have, since they came from an update, are stale, or discarded where they sleep.
  virtual Held recovered() const = 0;
  // Of all ranks, as they say themselves: after the last of these calls that has ended, well or not, or after
  // the last recovery; the host tiers' memory also after the last step. Thread safe.
  virtual GroupBytes bytes() const = 0;
  // `callback` is called at the end of each Recover or Restart, on any thread, also within the call. It must
  // not block. An empty function removes the callback: none runs afterwards.
  virtual void OnRecovered(std::function<void(absl::Status)> callback) = 0;
  // The epoch that the group is in; while it is recovered, the one that has failed. Thread safe.
  virtual int64_t group_epoch() const = 0;
};

}  // namespace somnus
