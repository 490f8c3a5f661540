#pragma once
// The state of an engine that has replicas, derived from theirs. A pure function.
//
//   what holds, the first that does                          the engine is
//   all replicas have failed                                 failed
//   it drains                                                draining
//   a replica is falling asleep                              falling_asleep
//   a replica is waking                                      waking
//   some are awake, during a pause                           pausing
//   some are awake and some asleep, during a sleep           falling_asleep
//   some are awake and some asleep, during a wake-up         waking
//   one is awake                                             awake
//   all are asleep                                           asleep
//   one is paused, and none is awake                         paused
//   otherwise: the others recover, or are restarted          recovering
//
// Replicas that have failed count in the first row alone. So the engine is ready as soon as one replica is,
// while others recover; and it sleeps only when all do, so that a client that waits for the memory gets all
// of it.

#include <vector>

#include "coordinator/residency/engine_state.h"

namespace somnus {

enum class SetCall { kNone, kSleep, kWakeUp, kPause };

// `call` is the lifecycle call of the whole engine that is under way.
EngineState SetState(const std::vector<EngineState>& replicas, SetCall call, bool draining);

}  // namespace somnus
