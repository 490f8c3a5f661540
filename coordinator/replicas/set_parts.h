#pragma once
// The parts of an engine with replicas, for the lifecycle calls of the whole engine. ReplicaSet owns the
// parts.

#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/replicas/call_turns.h"
#include "coordinator/replicas/call_waits.h"
#include "coordinator/replicas/replica_loops.h"
#include "coordinator/replicas/replica_queue.h"
#include "coordinator/replicas/set_board.h"

namespace somnus {

struct SetParts {
  const EngineOptions& options;  // what every replica can serve
  ReplicaLoops& loops;
  SetBoard& board;
  ReplicaQueue& queue;
  CallWaits& waits;
  CallTurns& turns;
  EngineObserver* observer;  // null: nobody gets events
};

}  // namespace somnus
