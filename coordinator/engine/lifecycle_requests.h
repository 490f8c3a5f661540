#pragma once
// Lifecycle requests: what a caller asks of an engine beside serving. Each kind of request is a plain value
// with its arguments, and names the type of its result. Engine::Run takes any kind; an engine over another
// engine looks only at the kinds that the engine changes, and passes the others on.
//
// Turns. An engine carries lifecycle requests out in turn, in the order of arrival, but for PrefetchRequest
// and AbortCallRequest, which take no turn. A request whose turn has not come ends with Cancelled when its
// client leaves (caller.h).
//
// Carrying out is collective and atomic over ranks, and blocks the caller, and nobody else, until all ranks
// have replied. A request that a loss of the group interrupts begins again after the recovery, a few times;
// the result is the loss when losses come too often, or when the engine drains or fails. Another error leaves
// every tag of every rank as it was, unless the kind says otherwise.
//
// Requests with kWait: while such a request waits for open requests, the next sleep or pause with another
// mode, resume or wake-up ends the wait, and the result is Aborted.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/engine/weight_update.h"
#include "coordinator/residency/held_adapter.h"
#include "coordinator/residency/transition_report.h"
#include "proto/weights.pb.h"

namespace somnus {

// The fate of open requests at a sleep or a pause. An engine that computes nothing has nothing to wait for:
// there kWait is kKeep.
enum class SleepMode {
  kAbort,  // they end with finish_reason "abort"
  kWait,   // they finish first; what arrives meanwhile is queued
  kKeep,   // they stop, and go on afterwards with the same tokens
};

// Releases the memory of the named tags, also where some tags slept before. The report has the fate of each
// tag.
struct SleepRequest {
  using Result = absl::StatusOr<TransitionReport>;

  int level = 1;                  // 1 or 2, as of SleepSpec; anything else is InvalidArgument
  std::vector<std::string> tags;  // empty: all
  SleepMode mode = SleepMode::kKeep;
  bool only_if_idle = false;  // Aborted, and nothing is done, unless the engine is awake without a request
  // Aborted, and nothing is done, where level 2 would lose weights that no checkpoint has. For callers that
  // put an engine to sleep without an operator's word.
  bool spares_only_copy = false;
  // Level 2 may lose weights that no checkpoint has. Without `force` such a sleep is FailedPrecondition, and
  // nothing is done.
  bool force = false;
  // Of host memory over all ranks, at most, for KV blocks that outlive a sleep of level 1. Not set: as much
  // as the host tier has.
  std::optional<int64_t> max_kept_bytes;
};

// Not a tag of memory: a WakeUpRequest takes the tag beside tags of memory, and ends a pause.
inline constexpr char kSchedulingTag[] = "scheduling";

// Maps the memory of the named tags. Ends a pause, too, once every tag is resident, or where kSchedulingTag
// is among the tags. FailedPrecondition: the weights are stale, or would be read, and only a reload or an
// update can bring weights. DataLoss: the self-check has found that what was woken is not what went to sleep;
// all tags sleep at level 2.
struct WakeUpRequest {
  using Result = absl::StatusOr<TransitionReport>;

  std::vector<std::string> tags;  // empty: all
  // Whether weights that were discarded, or that are stale, are read from their checkpoint; else the weights
  // are stale afterwards. Not set: where the weights came from a checkpoint.
  std::optional<bool> load_weights;
};

// For requests that wait: a wake-up of all tags that does not end a pause or a wait. Declined (declined.h)
// while the engine is paused, or once the engine ends or has failed.
struct WakeForArrivalsRequest {
  using Result = absl::StatusOr<TransitionReport>;
};

// Every open request ends with `error`, unless the engine computes.
struct EndWaitingRequest {
  using Result = absl::Status;

  absl::Status error;
};

// A hint: while weights sleep, what a wake-up would read of the checkpoint is brought from the disk into the
// page cache of the workers' hosts, in the background; nothing of weights that have a copy. The result comes
// once that has begun. Declined: no weights sleep.
struct PrefetchRequest {
  using Result = absl::Status;
};

// Nothing is computed until a resume, in every state that the engine has meanwhile; memory stays. No step is
// under way when the result comes.
struct PauseRequest {
  using Result = absl::Status;

  SleepMode mode = SleepMode::kKeep;
  // The prefix cache is emptied, and sequences that have run are preempted, so that all is computed again.
  bool clear_cache = true;
};

// Ends a pause. Where memory sleeps, the engine goes on when the memory is awake.
struct ResumeRequest {
  using Result = absl::Status;
};

// A change of the weights: a reload, or an update. In what ends a wait a change is as a sleep.
struct WeightsRequest {
  std::string path;     // of a reload: on the hosts of the workers; empty: the checkpoint that was read last
  int64_t version = 0;  // of the new weights; 0: the last one and 1
  std::string label;    // of the new weights (weight_labels.h); empty: none
  SleepMode mode = SleepMode::kWait;
  // Of an update, not empty: a direct one. Each rank opens a port for the client, whose calls need the token.
  std::string port_token;
  // Of an update: the tensors that will come, without data. InvalidArgument, and nothing has changed, where
  // the model lacks such a tensor.
  std::vector<v1::WeightChunk> tensors;
};

// Replaces the weights on every rank, whose memory must be mapped; nothing is computed meanwhile, and the
// prefix cache is emptied. FailedPrecondition and InvalidArgument: nothing has changed; after another error
// the weights are stale, and nothing is computed until a reload or an update has succeeded.
struct ReloadWeightsRequest {
  using Result = absl::StatusOr<WeightsChange>;

  WeightsRequest weights;
};

// Begins an update: the old weights are gone when the result comes. Other lifecycle requests wait for the
// update's end. A loss of the group ends the update.
struct UpdateWeightsRequest {
  using Result = absl::StatusOr<std::unique_ptr<WeightUpdate>>;

  WeightsRequest weights;
};

// Gives memory to the first `total_blocks` blocks of the KV cache (base/null_block.h), and takes memory from
// the others: between two steps, or while the cache sleeps, for when the cache wakes up. Replicas share the
// number evenly. The number is taken as no less than what a sequence of max_model_len needs, and no more than
// the whole cache. The result is how many blocks have memory then. Shrinking preempts nobody: blocks that are
// used keep their memory, so more may have some; they are not given out again, and another request can take
// them later. Growth that finds no memory changes nothing: ResourceExhausted.
struct ResizeKvCacheRequest {
  using Result = absl::StatusOr<int32_t>;

  int32_t total_blocks = 0;
};

// No later request adopts a block that is cached now.
struct ResetPrefixCacheRequest {
  using Result = absl::Status;

  bool preempt_running =
      false;  // sequences that run are preempted before: no block of the cache stays in use
};

// Every rank holds exactly these adapters afterwards (proto/worker.proto, SetAdapters); a slot keeps its
// adapter where the id stays. No request may have an adapter that goes. The report has the adapters'
// fingerprints. An error names the adapter, and the tensor or the key; then the ranks hold the adapters of
// the request that were held before. DataLoss: the files of an adapter do not have the
// HeldAdapter::fingerprint, or differ among ranks.
struct SetAdaptersRequest {
  using Result = absl::StatusOr<TransitionReport>;

  std::vector<HeldAdapter> adapters;
  // Where the engine has failed, the workers that revive it are to hold the adapters; the fingerprints are
  // set.
  bool by_next_workers = false;
};

// Starts new workers for an engine, or for replicas of an engine, that failed because workers were lost, in
// the state of the lost workers. The result comes when the group is whole, or has failed again. Declined:
// nothing has failed that new workers could mend.
struct ReviveRequest {
  using Result = absl::Status;

  bool asleep = false;  // the new workers take no memory, and a wake-up reads the checkpoint
};

// Restarts the workers of one replica after the other: new processes, which load the model again. Meanwhile a
// replica gets no new requests; the requests that are open there have `grace` to finish, and then go on at
// another replica, with the same tokens. FailedPrecondition: there is one replica, or no other replica would
// serve. Another error names the replica that did not come back, which has failed; the roll ends there.
struct RollRequest {
  using Result = absl::Status;

  absl::Duration grace;
};

inline constexpr char kEndedByOperator[] = "an operator has ended the call";

// Ends the lifecycle request that is under way, also while that request waits; the result of that request is
// Aborted. A request that waited for open requests has changed nothing. A change of the weights leaves the
// weights stale. Any other request that the workers were carrying out ends with a loss of the group: the
// group is recovered as before the request, and workers that do not get free are replaced. The result comes
// when the request has ended. FailedPrecondition: no request is under way, or only a restart of the workers,
// which ends by itself.
struct AbortCallRequest {
  using Result = absl::Status;
};

inline constexpr char kForceLosesOnlyCopy[] =
    "the weights came from an update, and no file has them: a sleep at level 2 would lose them. Level 1 "
    "keeps them; "
    "with force they are lost, and a reload or an update has to bring others";

using LifecycleRequest = std::variant<SleepRequest, WakeUpRequest, WakeForArrivalsRequest, EndWaitingRequest,
                                      PrefetchRequest, PauseRequest, ResumeRequest, ReloadWeightsRequest,
                                      UpdateWeightsRequest, ResizeKvCacheRequest, ResetPrefixCacheRequest,
                                      SetAdaptersRequest, ReviveRequest, RollRequest, AbortCallRequest>;
// Of the type that the request's kind names, or an error as a plain status.
using LifecycleResult =
    std::variant<absl::Status, absl::StatusOr<TransitionReport>, absl::StatusOr<WeightsChange>,
                 absl::StatusOr<std::unique_ptr<WeightUpdate>>, absl::StatusOr<int32_t>>;

// The request is of one of these kinds.
template <typename... Kinds>
bool IsOneOf(const LifecycleRequest& request) {
  return (std::holds_alternative<Kinds>(request) || ...);
}

// Calls `visitor` with the request as a value of its kind. The visitor has an overload for each kind, which
// returns the kind's Result.
template <typename Visitor>
LifecycleResult VisitRequest(const LifecycleRequest& request, Visitor&& visitor) {
  return std::visit(
      [&visitor](const auto& one) -> LifecycleResult {
        typename std::decay_t<decltype(one)>::Result result = visitor(one);
        return result;
      },
      request);
}

}  // namespace somnus
