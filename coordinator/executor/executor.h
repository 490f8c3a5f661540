#pragma once
// Collective RPC to all ranks of one model. The engine sees this interface; GrpcExecutor implements it, and
// tests fake it. Used by the engine loop thread alone, except for methods that say "Thread safe", Abort and
// the callbacks.

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
#include "coordinator/residency/held_adapter.h"
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
  // and is the caller's again. InvalidArgument, and nothing is sent, when the message is larger than workers
  // accept.
  virtual absl::Status ExecuteAsync(v1::StepRequest* step) = 0;
  // Sends rank 0 the masks of a step that awaits masks, once, after the step and before Wait for its reply.
  // Errors as ExecuteAsync.
  virtual absl::Status SendMasks(v1::StepMasks masks) = 0;
  // Waits for the oldest step not yet waited for. Returns rank 0's reply once every rank has replied, with
  // the other ranks' news of swaps: refusals, and the host memory of all. The first error is the step's
  // error, with the rank in it ("rank 1 (pid 77) was killed by signal 9 (Killed)"). DeadlineExceeded after
  // `timeout`.
  virtual absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout) = 0;

  // Transitions. SleepAsync and WakeUpAsync are collective and all or nothing, and return at once. At most
  // one runs at a time, with no step under way. The tags, at least one, are the tags that the call changes
  // (Residency::ToSleep, ToWake). `done` is called exactly once, on any thread, also within the call; `done`
  // must not block. The report for `done` has only the ranks filled in. After an error either Health says why
  // the group is lost, or every rank is where it was. `host` is for calls that change the KV cache. Kept
  // blocks are copied to the host tier before a sleep of level 1 that releases the cache, and copied back by
  // the wake-up that maps the cache and names the same blocks. Swapped-out blocks that are not named are
  // forgotten.
  using LifecycleDone = std::function<void(absl::StatusOr<TransitionReport>)>;
  virtual void SleepAsync(const SleepSpec& spec, const HostTierBlocks& host, LifecycleDone done) = 0;
  // `reads_weights`: weights that were discarded, or that are stale, are read from the checkpoint; else such
  // weights are stale afterwards.
  virtual void WakeUpAsync(const std::vector<std::string>& tags, bool reads_weights,
                           const HostTierBlocks& host, LifecycleDone done) = 0;
  // Gives memory to the first num_blocks blocks of every rank's KV cache, and takes the memory of all further
  // blocks, whether the cache is resident or sleeps. Otherwise as SleepAsync and WakeUpAsync. `num_before`:
  // how many blocks have memory now. The report for `done` has each rank's resident bytes of the cache.
  virtual void ResizeKvCacheAsync(int32_t num_blocks, int32_t num_before, LifecycleDone done) = 0;
  // Afterwards every rank holds exactly `adapters`, also while memory sleeps. `kept`: the part of `adapters`
  // that the ranks hold now; after an error the ranks hold exactly `kept`. Otherwise as
  // ResizeKvCacheAsync; the report has the adapters' fingerprints alone.
  virtual void SetAdaptersAsync(const std::vector<HeldAdapter>& adapters,
                                const std::vector<HeldAdapter>& kept, LifecycleDone done) = 0;
  // Every rank reads the files of `adapters`, which the ranks do not hold, so that the next SetAdaptersAsync
  // reads no files of these adapters. As SetAdaptersAsync, but steps may be under way, nothing that the ranks
  // hold changes, and the report is empty. After an error the ranks keep nothing that they have read.
  virtual void ReadAdaptersAsync(const std::vector<HeldAdapter>& adapters, LifecycleDone done) = 0;
  // The ReadAdaptersAsync that is under way ends soon, with `reason` as its error unless the files are read
  // by then. A rank whose read hangs is left to it.
  virtual void CancelRead(const absl::Status& reason) = 0;
  // Whether the last sleep or wake-up was committed when the group was lost: then the transition has
  // happened, and Recover has to bring all ranks to its end. Known once the failure is known. Thread safe.
  virtual bool committed() const = 0;

  // Every rank computes a fixed prompt, with all tags resident and no step under way (proto/worker.proto). As
  // with transitions, but `done` gets a result of its own type. An error is a loss of the group, which Health
  // reports.
  using SelfCheckDone = std::function<void(absl::StatusOr<SelfCheckResult>)>;
  virtual void SelfCheckAsync(SelfCheckDone done) = 0;

  // A hint while weights sleep: every rank begins to bring its part of the checkpoint into the page cache of
  // its host. Blocks until all have begun; a wake-up does not wait for prefetches. Thread safe.
  virtual absl::Status Prefetch() = 0;
  // The memory that a wake-up of these tags would take, by rank; nothing is changed. Blocks until all ranks
  // have replied. Thread safe.
  virtual absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& tags) = 0;

  // Changes of the weights, whose memory must be mapped. The calls are collective and return at once; at most
  // one of these calls, or of the calls above, runs at a time. `done` is called exactly once, on any thread,
  // also within the call; `done` must not block. After an error the ranks may have different weights, unless
  // the outcome says `untouched`.
  using WeightsDone = std::function<void(WeightsOutcome)>;
  // Every rank reads the checkpoint at `path`; empty: the checkpoint that the rank has read last. Ranks that
  // read different files are an error.
  virtual void ReloadWeightsAsync(const std::string& path, int64_t version, WeightsDone done) = 0;
  // An update: the weights are stale on every rank, and SendWeights may be called until the update is
  // finished. A token makes the update direct: `done` gets the ranks' update ports, which are open until the
  // update ends. `tensors`: the tensors that will come, without data; where the model lacks such a tensor,
  // the outcome is an error, and nothing has changed.
  virtual void BeginWeightUpdateAsync(const std::string& update_id, const std::string& port_token,
                                      const std::vector<v1::WeightChunk>& tensors, WeightsDone done) = 0;
  // Sends a chunk of that update to every rank. Blocks while any rank takes no more. An error is the
  // update's, and names the rank; FailedPrecondition: that update is not under way. Thread safe, one call of
  // an update at a time.
  virtual absl::Status SendWeights(const std::string& update_id, v1::WeightChunk chunk) = 0;
  // Waits until every rank has all chunks in place, and gives the weights their version. An error: the ranks
  // got different tensors, or not the expected tensors.
  virtual void FinishWeightUpdateAsync(int64_t version, const std::optional<ReceivedWeights>& expected,
                                       WeightsDone done) = 0;
  // Gives the update up, if one is under way: SendWeights returns. Thread safe, and does not block.
  virtual void CancelWeightUpdate() = 0;

  // Ok while every rank is believed alive; else says which rank failed and why. Thread safe.
  virtual absl::Status Health() const = 0;
  // Ok while every rank gets on with its steps, as far as heartbeats tell; else names a rank that does not,
  // which may still recover. Thread safe.
  virtual absl::Status Progress() const = 0;
  // `callback` is called at most once in an epoch, on any thread, when a rank is lost, whether a call is
  // waiting for that rank or not; at once when a rank is lost already. The callback must not block. An empty
  // function removes the callback: no callback runs afterwards.
  virtual void OnFailure(std::function<void(absl::Status)> callback) = 0;
  // Ends the call that is waiting, and every later one, with `reason`. Thread safe.
  virtual void Abort(const absl::Status& reason) = 0;

  // The group counts as lost, with `reason`: the call that is waiting ends, and Recover makes the group whole
  // again. Thread safe.
  virtual void LoseEpoch(const absl::Status& reason) = 0;

  // Makes the group whole again after a failure, which ended an epoch, and returns at once; OnRecovered tells
  // the outcome. After success every rank serves the next epoch: no slot is taken, no step is in flight, and
  // the ranks hold recovered(). Until then every other call returns the failure. An error is final, and so is
  // the reason of an Abort.
  virtual void Recover(const Held& held) = 0;
  // Ends the workers, which are well, starts new workers in their places, and goes on as Recover. No call is
  // under way.
  virtual void Restart(const Held& held) = 0;
  // The group is given up: workers that can be replaced end, so that their memory is free. OnRecovered tells
  // `reason` then. A Recover that comes later begins with new workers.
  virtual void Dismiss(const absl::Status& reason) = 0;
  // The result of the last successful Recover or Restart: the `held` that was asked for, except that weights
  // from an update, which new workers cannot have, are stale, or discarded where the weights sleep.
  virtual Held recovered() const = 0;
  // The bytes of all ranks, in the ranks' own words: after the last ended call, successful or not, or after
  // the last recovery; the host tiers' memory also after the last step. Thread safe.
  virtual GroupBytes bytes() const = 0;
  // `callback` is called at the end of each Recover or Restart, on any thread, also within the call. The
  // callback must not block. An empty function removes the callback: no callback runs afterwards.
  virtual void OnRecovered(std::function<void(absl::Status)> callback) = 0;
  // The epoch that the group is in; during a recovery, the failed epoch. Thread safe.
  virtual int64_t group_epoch() const = 0;
};

}  // namespace somnus
