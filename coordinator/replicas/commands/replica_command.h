#pragma once
// A lifecycle request of an engine with replicas, as the whole engine carries the request out: one class for
// each kind, with the command's state. A new kind is a class here and a line of ReplicaSet::Run.
//
// Life. A command lives on the thread of its caller. Its construction waits for the command's turn (the
// turn's status may be an error), its Run blocks until the result is known, and its destruction gives the
// turn back. RunOnAll is the part in which the replicas take part, and is atomic over replicas: where a
// replica returns an error, the replicas that the command has changed are brought back. A replica that fails
// for good meanwhile counts no more.
//
// Threads. DoAt and UndoAt are called for several replicas at once, on several threads; what they change is
// their replica's alone. `parts` is borrowed.

#include <cstddef>

#include "absl/status/statusor.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/replicas/replica_calls.h"
#include "coordinator/replicas/set_call.h"
#include "coordinator/replicas/set_parts.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

class ReplicaCommand {
 public:
  virtual ~ReplicaCommand() = default;
  ReplicaCommand(const ReplicaCommand&) = delete;

 protected:
  // `name` and `ends_waits`: as CallTurn.
  ReplicaCommand(const SetParts& parts, const char* name, bool ends_waits)
      : parts_(parts), turn_(parts, name, ends_waits) {}

  const SetParts& parts() const { return parts_; }
  const CallTurn& turn() const { return turn_; }

  // The part of one replica.
  virtual absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) = 0;
  // UndoAt would bring the replica back to its state before DoAt, which went well.
  virtual bool Undoes(size_t /*replica*/) const { return false; }
  virtual absl::StatusOr<TransitionReport> UndoAt(EngineLoop* loop, size_t replica);
  // DoAt at all replicas. Returns the report over all replicas, or an error once what was done is undone.
  absl::StatusOr<TransitionReport> RunOnAll();

 private:
  const SetParts& parts_;
  const CallTurn turn_;
};

}  // namespace somnus
