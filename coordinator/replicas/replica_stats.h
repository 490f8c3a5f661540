#pragma once
// The snapshot of an engine with replicas, from the snapshots of the replicas. A pure function.
//
//   members                                                  of the engine
//   counters, numbers of blocks, tokens, requests and bytes  the sum over replicas
//   decode_step_time, group_epoch                            the largest of the replicas
//   block_size                                               equal on all replicas
//   sleep_level with residency                               the replica that sleeps least, without failed
//   replicas weights_version with weights_source                      the latest version, without failed
//   replicas only_copy, needs_weights                                 true of a replica that has not failed
//   paused, gave_up_stale_weights                            true of every replica that has not failed
//   may_revive                                               true of a failed replica
//   note.why, lifecycle_call                                 the first replica with one, in the engine's
//   state
//                                                            where there is such a replica
//   stall with stalled_since                                 ok while a replica serves
//   error                                                    all errors, once all replicas have failed
//   the members that the queue, the set or an engine around the set knows: num_moved, oldest_wait,
//   wake_up_error, request_wakes, awaits_room_of, model_flag, num_auto_sleeps, num_auto_wake_ups stay empty.

#include <vector>

#include "absl/time/time.h"
#include "coordinator/engine/engine.h"

namespace somnus {

// `state`: of the engine, since `since`.
EngineStats SumOfReplicas(const std::vector<EngineStats>& replicas, EngineState state, absl::Time since);

}  // namespace somnus
