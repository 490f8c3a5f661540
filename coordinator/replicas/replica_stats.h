#pragma once
// The snapshot of an engine with replicas, from the snapshots of the replicas. A pure function.
//
//   members                                  of the engine
//   counters; numbers of blocks, tokens,     the sum over replicas
//     requests and bytes
//   decode_step_time, group_epoch            the largest of the replicas
//   block_size                               equal on all replicas
//   sleep_level, residency                   of the live replica with the shallowest sleep
//   weights_version, weights_source          the latest version of a live replica
//   only_copy, needs_weights                 true for a live replica
//   paused, gave_up_stale_weights            true for all live replicas, and a replica lives
//   may_revive                               true for a failed replica
//   note.why                                 of a replica in the engine's state, if none: of any replica
//   lifecycle_call                           of the first replica with a call
//   stall, call_stalls, stalled_since        ok while a replica serves, else of the first that stalls
//   error                                    all errors, once all replicas have failed
//   num_moved, oldest_wait                   empty; the set adds the values
//   wake_up_error, request_wakes,            empty; engines around the set add the values
//     awaits_room_of, model_flag,
//     num_auto_sleeps, num_auto_wake_ups
//
// A live replica is a replica that has not failed.

#include <vector>

#include "absl/time/time.h"
#include "coordinator/engine/engine_stats.h"

namespace somnus {

// `state`: of the engine, since `since`.
EngineStats SumOfReplicas(const std::vector<EngineStats>& replicas, EngineState state, absl::Time since);

}  // namespace somnus
