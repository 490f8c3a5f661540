#pragma once
// The pause of all replicas (PauseRequest) and its end (ResumeRequest). Where a replica cannot be paused, the
// others are resumed, unless the engine was paused before.

#include "absl/status/status.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_command.h"

namespace somnus {

class ReplicaPause : public ReplicaCommand {
 public:
  ReplicaPause(const SetParts& parts, const PauseRequest& request)
      : ReplicaCommand(parts, "pause", request.mode != SleepMode::kWait), request_(request) {}

  absl::Status Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;
  bool Undoes(size_t /*replica*/) const override { return !was_paused_; }
  absl::StatusOr<TransitionReport> UndoAt(EngineLoop* loop, size_t replica) override;

  const PauseRequest request_;
  bool was_paused_ = false;  // the engine, before the command
};

class ReplicaResume : public ReplicaCommand {
 public:
  explicit ReplicaResume(const SetParts& parts) : ReplicaCommand(parts, "resume", /*ends_waits=*/true) {}

  absl::Status Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;
};

}  // namespace somnus
