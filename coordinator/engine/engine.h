#pragma once
// One served model: the step loop, and the only state that says whether it can serve.
//
// Contract. 1. One loop thread owns the scheduler, the block manager and all requests; everything else
// reaches them through this interface's command queue, so every method is thread safe. 2. Under
// async_scheduling step k+1 is scheduled and sent before step k's reply is handled, else after; both give the
// same tokens. 3. Admission, health, is_sleeping and metrics read state(), and nothing else says whether the
// engine serves; residency/engine_state.h says what each state means and which changes are allowed. 4. Every
// accepted request ends in exactly one output with a finish_reason.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/block_manager/pin_releases.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/pinned_prefixes.h"
#include "coordinator/engine/state_history.h"
#include "coordinator/request/preemption_counts.h"
#include "coordinator/request/request.h"
#include "coordinator/request/speculation_counts.h"
#include "coordinator/residency/engine_state.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/transition_report.h"
#include "coordinator/residency/weights.h"
#include "proto/weights.pb.h"

namespace somnus {

// What becomes of open requests at a sleep or a pause. An engine that computes nothing has nothing to wait
// for: there kWait is kKeep.
enum class SleepMode {
  kAbort,  // they end with finish_reason "abort"
  kWait,   // they finish first; what arrives meanwhile is queued
  kKeep,   // they stop, and go on afterwards with the same tokens
};

struct SleepRequest {
  int level = 1;                  // as of SleepSpec
  std::vector<std::string> tags;  // empty: all
  SleepMode mode = SleepMode::kKeep;
  bool only_if_idle = false;  // Aborted, and nothing is done, unless the engine is awake without a request
  // Aborted, and nothing is done, where level 2 would lose weights that no checkpoint has. For whoever puts
  // an engine to sleep without an operator's word.
  bool spares_only_copy = false;
  // Level 2 may lose weights that no checkpoint has. Without `force` such a sleep is FailedPrecondition, and
  // nothing is done.
  bool force = false;
  // Of host memory over all ranks, at most, for KV blocks that outlive a sleep of level 1. Not set: as much
  // as the host tier has.
  std::optional<int64_t> max_kept_bytes;
};

struct PauseRequest {
  SleepMode mode = SleepMode::kKeep;
  // The prefix cache is emptied, and sequences that have run are preempted, so that all is computed again.
  bool clear_cache = true;
};

// A change of the weights: a reload, or an update.
struct WeightsRequest {
  std::string path;     // of a reload: on the hosts of the workers; empty: the checkpoint that was read last
  int64_t version = 0;  // of the new weights; 0: the last one and 1
  SleepMode mode = SleepMode::kWait;
  // Of an update, not empty: a direct one. Each rank opens a port for the client, whose calls need the token.
  std::string port_token;
  // Of an update: the tensors that will come, without data. InvalidArgument, and nothing has changed, where
  // the model lacks such a tensor.
  std::vector<v1::WeightChunk> tensors;
};

inline constexpr char kForceLosesOnlyCopy[] =
    "the weights came from an update, and no file has them: a sleep at level 2 would lose them. Level 1 "
    "keeps them; "
    "with force they are lost, and a reload or an update has to bring others";
inline constexpr char kEndedByOperator[] = "an operator has ended the call";

// What it has led to.
struct WeightsChange {
  int64_t version = 0;
  std::string fingerprint;   // of the checkpoint, after a reload
  ReceivedWeights received;  // of an update
};

// An update of the weights that is under way. Its engine must live as long; for one thread, which is the one
// that began it.
class WeightUpdate {
 public:
  // Gives the update up unless Finish was called: then the weights are stale.
  virtual ~WeightUpdate() = default;
  // Sends a part of a tensor to all ranks. Blocks while one of them takes no more. After an error, which
  // names the rank, the update is of no use any longer.
  virtual absl::Status Send(v1::WeightChunk chunk) = 0;
  // Ok while the update goes on; else the error that has ended the update before Finish. On any thread.
  virtual absl::Status status() const = 0;
  // Where the client of a direct update sends its chunks: ports of all ranks, or none. They are open until
  // the update's end.
  virtual std::vector<v1::UpdatePort> ports() const = 0;
  // The weights have their new version on every rank, or are stale. To be called once. DataLoss: not the same
  // has come to all ranks, or not what is expected.
  virtual absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) = 0;
  absl::StatusOr<WeightsChange> Finish() { return Finish(std::nullopt); }
};

// Not a tag of memory: WakeUp takes it beside them, and ends a pause.
inline constexpr char kSchedulingTag[] = "scheduling";

// The lifecycle call that is under way.
struct LifecycleCallStats {
  std::string name;    // as of its route: "update_weights"; empty: no call is under way
  std::string client;  // as Caller::name; empty: the server itself
  MonotonicTime began;
  int32_t num_waiting = 0;  // calls that wait for their turn
};

// One replica of an engine that has several (coordinator/replicas).
struct ReplicaStats {
  EngineState state = EngineState::kLoading;
  std::string error;  // why the replica is kFailed
  int32_t num_running = 0;
  int32_t num_waiting = 0;   // there, beside those that have no replica yet
  int64_t num_requests = 0;  // that were handed to it since start
  int64_t num_recoveries = 0;
  int64_t group_epoch = 0;
};

// Why requests are refused after stale_weights_timeout (stale_weights.h).
inline constexpr char kStaleForTooLong[] =
    "The weights have been stale for too long; requests are refused until a reload or an update has brought "
    "others.";

// A consistent snapshot, which the loop takes between two steps. Of an engine with replicas: sums over them,
// the shallowest sleep and the latest epoch.
struct EngineStats {
  EngineState state = EngineState::kLoading;
  int sleep_level = 0;          // that every rank has reached
  Residency residency;          // as of the last lifecycle call that has ended
  int64_t weights_version = 0;  // that every rank has; 0: the weights are stale
  std::string weights_source;   // as Weights::source; empty: the weights are stale
  bool only_copy = false;       // the workers alone have the weights, as after an update; level 2 loses them
  bool needs_weights = false;   // no wake-up brings the weights any more: a reload or an update has to
  bool paused = false;          // a pause holds, in whatever state; of replicas: all are paused
  // As of GroupBytes: after the last lifecycle call that has ended, well or not, or the last recovery.
  TagBytes resident_bytes;
  TagBytes host_bytes;
  TagBytes sleeping_bytes;
  std::string error;          // why the engine is kFailed
  std::string wake_up_error;  // why the last wake-up for requests failed; empty: no failure
  // For engine_report.h.
  StateNote note;
  bool may_revive = false;             // kFailed, and Revive would start new workers
  bool gave_up_stale_weights = false;  // requests are refused: kStaleForTooLong
  absl::Status stall;                  // the step or the rank that hangs
  absl::Time stalled_since = absl::InfinitePast();
  bool request_wakes = false;  // asleep, but a request would wake it
  std::string awaits_room_of;  // models that hold the memory which requests of this one wait for; empty: none
  std::string model_flag;      // the model's name, where several are served
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  // Blocks of the KV cache, without the null block (base/null_block.h): total = free + used. Where the cache
  // was shrunk, those that sequences may not take any more do not count.
  int32_t total_blocks = 0;
  int32_t free_blocks = 0;  // cached ones included
  int32_t used_blocks = 0;  // held by running sequences and pinned prefixes
  int32_t block_size = 0;
  // Of the cache's size (ResizeKvCache), likewise without the null block.
  int32_t mapped_blocks = 0;   // that have memory while the cache is resident
  int32_t longest_blocks = 0;  // that a sequence of max_model_len takes
  int32_t max_blocks = 0;      // of the whole cache
  int64_t waiting_tokens = 0;  // of prompts that were never scheduled
  // So long the oldest open request has waited for memory that sleeps (of replicas: on all); 0: none does.
  absl::Duration oldest_wait;
  // Counters since start.
  int64_t num_preemptions = 0;
  PreemptionCounts preemptions;  // the same
  SwapCounts swaps;
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t copied_blocks = 0;            // that a fork has of its own
  int64_t watermark_refusals = 0;       // admissions that blocks below the watermark alone would have allowed
  int64_t num_first_scheduled = 0;      // requests that have begun
  absl::Duration queue_time;            // which they have waited for, together
  int64_t prefix_cache_queries = 0;     // tokens
  int64_t prefix_cache_hits = 0;        // tokens
  CacheMissCounts prefix_cache_misses;  // the others of the queries
  CacheBlockCounts cached_blocks;
  SpeculationCounts speculation;
  int64_t num_forks = 0;  // sequences that began as forks of another one
  // Of the host tier, and of what outlived sleeps there.
  int32_t total_host_blocks = 0;
  int32_t used_host_blocks = 0;
  int32_t cached_host_blocks = 0;  // among these: of the prefix cache
  // Of host memory over all ranks, that a sleep of level 1 would take for KV blocks if it came now, or a step
  // later. 0: it would keep none.
  int64_t keepable_bytes = 0;
  int32_t pinned_blocks = 0;  // that pinned prefixes hold, each once
  PinReleases pin_releases;
  int64_t num_cache_grows = 0;    // changes of the KV cache's size
  int64_t num_cache_shrinks = 0;  // likewise; those of a recovery that brought all ranks to one size included
  int64_t kept_blocks = 0;        // that came back
  int64_t kept_tokens = 0;        // of open requests, that were not computed again
  int64_t num_steps = 0;
  absl::Duration decode_step_time;  // of steps that only decode, lately; of the slowest replica; 0: none yet
  int64_t num_recoveries = 0;       // of the group, that ended well
  int64_t group_epoch = 0;          // that the group is in, or that is being formed: 1 at first
  int64_t num_moved = 0;            // requests that left a replica for another one
  LifecycleCallStats lifecycle_call;
  int64_t num_auto_sleeps = 0;         // that the engine began by itself
  int64_t num_auto_wake_ups = 0;       // that requests began
  std::vector<ReplicaStats> replicas;  // empty: the engine has none
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Submits requests, all or none (n choices, a list of prompts). Ok: the sink of each will get a final
  // output. ResourceExhausted: the queue is full. InvalidArgument: a request can never be served (beyond
  // max_model_len or the whole cache), or its id is in use. Unavailable: the engine is loading, draining or
  // failed. While it sleeps or is paused, requests are queued within the same bounds.
  // The call decides atomically, and is cheap enough for an I/O thread.
  virtual absl::Status SubmitAll(std::vector<EngineRequest> requests) = 0;
  absl::Status Submit(EngineRequest request);
  // The request ends with kAbort and its blocks are free within one step. Unknown ids are ignored.
  virtual void Abort(const std::string& request_id) = 0;

  virtual EngineState state() const = 0;
  // Ok exactly when a request that came now would be served without anybody's doing: the engine is awake, and
  // no step has been under way for longer than the stall threshold. Unavailable has the line of
  // engine_report.h.
  virtual absl::Status Health() const = 0;
  // `callback` runs now and after every change of state(), on the thread that made it and one at a time; it
  // reads state() itself and must not block. An empty one removes it: none runs afterwards.
  virtual void OnStateChange(std::function<void()> callback) = 0;
  virtual EngineStats Stats() const = 0;

  // The calls from here to Roll, except Prefetch, are lifecycle calls: the engine does the calls in turn, in
  // the order of arrival. A call that has not begun ends with Cancelled when its client leaves (caller.h).
  //
  // Collective and atomic over ranks. Block the caller, and nobody else, until all ranks have replied; calls
  // are done one after the other. Sleep releases the tags that the request names, whatever slept before;
  // WakeUp without tags means all. The report says what became of each of them. A call that a loss of the
  // group interrupts begins again after the recovery, a few times; it returns the loss when that comes too
  // often, or when the engine drains or fails. Another error leaves every tag of every rank as it was.
  //
  // Of calls with kWait: while they wait for open requests, the next Sleep or Pause with another mode, Resume
  // or WakeUp ends the wait, and they return Aborted.
  virtual absl::StatusOr<TransitionReport> Sleep(const SleepRequest& request) = 0;
  // Ends a pause, too, once every tag is resident, or where kSchedulingTag is among the tags. `load_weights`:
  // whether weights that were discarded, or that are stale, are read from their checkpoint; else they are
  // stale afterwards. Not set: where they came from one. FailedPrecondition: they are stale, or would be
  // read, and only a reload or an update can bring them. DataLoss: the self-check has found that what was
  // woken is not what went to sleep; all tags sleep at level 2.
  virtual absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags,
                                                  std::optional<bool> load_weights) = 0;
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags) {
    return WakeUp(tags, std::nullopt);
  }
  // For requests that wait: a WakeUp of all tags that does not end a pause or a wait. Declined (declined.h)
  // while the engine is paused, or once the engine ends or has failed.
  virtual absl::StatusOr<TransitionReport> WakeForArrivals() = 0;
  // Every open request ends with `error`, unless the engine computes. Blocks as Sleep does.
  virtual void EndWaiting(const absl::Status& error) = 0;
  // A hint: while weights sleep, what a wake-up would read of the checkpoint is brought from the disk into
  // the page cache of the workers' hosts, in the background; nothing of weights that have a copy. Returns
  // once that has begun. Declined: no weights sleep.
  virtual absl::Status Prefetch() = 0;
  // Nothing is computed until Resume, in whatever state the engine is meanwhile; memory stays. No step is
  // under way when it returns. Blocks as Sleep does.
  virtual absl::Status Pause(const PauseRequest& request) = 0;
  // Ends a pause. Where memory sleeps, the engine goes on when it is awake.
  virtual absl::Status Resume() = 0;
  // Replaces the weights on every rank, whose memory must be mapped; nothing is computed meanwhile, and the
  // prefix cache is emptied. Blocks as Sleep does, also in what ends a wait. FailedPrecondition and
  // InvalidArgument: nothing has changed; after another error they are stale, and nothing is computed until a
  // reload or an update has succeeded. A reload that a loss of the group interrupts begins again.
  virtual absl::StatusOr<WeightsChange> ReloadWeights(const WeightsRequest& request) = 0;
  // Begins an update: the old weights are gone when it returns. Other lifecycle calls wait for its end. A
  // loss of the group ends it.
  virtual absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginWeightUpdate(const WeightsRequest& request) = 0;
  // Gives memory to the first `total_blocks` blocks of the KV cache (base/null_block.h), and takes it from
  // the others: between two steps, or while the cache sleeps, for when it wakes up. Replicas share the number
  // evenly. Blocks as Sleep does. Returns how many have memory then. The number is taken as no less than what
  // a sequence of max_model_len needs, and no more than the whole cache. Shrinking preempts nobody: blocks
  // that are used keep their memory, so more may have some; they are not given out again, and another call
  // can take them later. Growth that finds no memory changes nothing: ResourceExhausted.
  virtual absl::StatusOr<int32_t> ResizeKvCache(int32_t total_blocks) = 0;
  // `preempt_running`: sequences that run are preempted before, so that no block of the cache stays in use.
  virtual absl::Status ResetPrefixCache(bool preempt_running) = 0;
  // Of the same life as the engine. With replicas every one of them pins the same.
  virtual PinnedPrefixes& pinned_prefixes() = 0;
  // Starts new workers for an engine, or for replicas of an engine, that failed because workers were lost, in
  // the state of the lost workers; `asleep`: the new workers take no memory, and a wake-up reads the
  // checkpoint. Blocks the caller until the group is whole, or has failed again. Declined: nothing has failed
  // that new workers could mend.
  virtual absl::Status Revive(bool asleep) = 0;
  // Restarts the workers of one replica after the other: new processes, which load the model again. Meanwhile
  // a replica gets no new requests; those that are open there have `grace` to finish, and then go on at
  // another one, with the same tokens. Blocks the caller; lifecycle calls that come meanwhile wait for its
  // end. FailedPrecondition: there is one replica, or no other one would serve. Another error names the
  // replica that did not come back, which has failed; the roll ends there.
  virtual absl::Status Roll(absl::Duration grace) = 0;

  // Ends the lifecycle call that is under way, also while the call waits; that call returns Aborted. A call
  // that waited for open requests has changed nothing. A change of the weights leaves the weights stale. Any
  // other call that the workers were carrying out ends with a loss of the group: the group is recovered as
  // before the call, and workers that do not get free are replaced. Returns when the call has ended.
  // FailedPrecondition: no call is under way, or only a restart of the workers, which ends by itself.
  virtual absl::Status AbortCall() = 0;

  // Refuses new requests, finishes or (after `grace`) aborts the open ones, then stops the loop.
  virtual void DrainAndStop(absl::Duration grace) = 0;

  virtual int32_t max_model_len() const = 0;
  virtual int32_t vocab_size() const = 0;
};

inline absl::Status Engine::Submit(EngineRequest request) {
  std::vector<EngineRequest> requests;
  requests.push_back(std::move(request));
  return SubmitAll(std::move(requests));
}

}  // namespace somnus
