#pragma once
// The snapshot of an engine: its state, its residency, the numbers of its queue and of its KV cache, and
// counters since the start. Values; an engine makes a snapshot under its own locks (Engine::Stats).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/block_manager/pin_releases.h"
#include "coordinator/engine/state_history.h"
#include "coordinator/request/preemption_counts.h"
#include "coordinator/request/speculation_counts.h"
#include "coordinator/residency/engine_state.h"
#include "coordinator/residency/residency.h"

namespace somnus {

// The lifecycle call that is under way.
struct LifecycleCallStats {
  std::string name;    // as of its route: "update_weights"; empty: no call is under way
  std::string client;  // as Caller::name; empty: the server itself
  MonotonicTime began;
  int32_t num_waiting = 0;   // calls that wait for their turn
  bool steps_go_on = false;  // steps are computed meanwhile
  // Not ok: the call has been under way for so long that the engine stalls, unless steps go on and nobody
  // waits for the call.
  absl::Status stall;
  absl::Time stalled_since = absl::InfinitePast();
};

// A replica of an engine that has several replicas (coordinator/replicas).
struct ReplicaStats {
  EngineState state = EngineState::kLoading;
  std::string error;  // why the replica is kFailed
  int32_t num_running = 0;
  int32_t num_waiting = 0;   // there, beside requests that have no replica yet
  int64_t num_requests = 0;  // that the replica has got since the start
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
  bool call_stalls = false;            // `stall` is that of lifecycle_call, which changes no state
  absl::Status stall;                  // the step, the rank or the call that hangs
  absl::Time stalled_since = absl::InfinitePast();
  bool request_wakes = false;  // asleep, but a request would wake it
  std::string awaits_room_of;  // models that hold the memory which requests of this one wait for; empty: none
  std::string model_flag;      // the model's name, where several are served
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  // Blocks of the KV cache, without the null block (base/null_block.h): total = free + used. Where the cache
  // was shrunk, blocks that sequences may not take any more do not count.
  int32_t total_blocks = 0;
  int32_t free_blocks = 0;  // cached blocks included
  int32_t used_blocks = 0;  // held by running sequences and pinned prefixes
  int32_t block_size = 0;
  // Of the cache's size (ResizeKvCache), likewise without the null block.
  int32_t mapped_blocks = 0;   // that have memory while the cache is resident
  int32_t longest_blocks = 0;  // that a sequence of max_model_len has at once
  int32_t max_blocks = 0;      // of the whole cache
  int64_t waiting_tokens = 0;  // of prompts that were never scheduled
  // So long the oldest open request has waited for memory that sleeps (of replicas: on all); 0: none does.
  absl::Duration oldest_wait;
  // Counters since start.
  int64_t num_preemptions = 0;
  PreemptionCounts preemptions;  // the same
  SwapCounts swaps;
  int64_t prompt_tokens = 0;
  int64_t forked_prompt_tokens = 0;  // as of SchedulerStats
  int64_t generation_tokens = 0;
  int64_t corrupted_requests = 0;       // that ended because their logits were bad
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
  int64_t num_cache_shrinks = 0;  // also by a recovery that brought all ranks to one size
  int64_t given_back_blocks = 0;  // by running sequences, since no later query attends them
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

  // Somebody waits for lifecycle_call.
  void NoteThatCallStalls() {
    call_stalls = true;
    stall = lifecycle_call.stall;
    stalled_since = lifecycle_call.stalled_since;
  }
};

}  // namespace somnus
