#include "coordinator/replicas/replica_roll.h"

#include <string>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/executor/memory_check.h"

namespace somnus {

absl::Status ReplicaRoll::Run(absl::Duration grace) {
  CallTurn turn(parts_, "roll", /*ends_waits=*/false);
  RETURN_IF_ERROR(turn.status());
  if (under_way_.exchange(true)) return absl::FailedPreconditionError("another roll is under way");
  const CallerScope begun(BegunCaller());
  absl::Status status = RollAll(grace, &turn);
  under_way_ = false;
  return status;
}

absl::Status ReplicaRoll::RollAll(absl::Duration grace, CallTurn* turn) {
  RETURN_IF_ERROR(revival_.AwaitSettled());
  if (const EngineState state = parts_.board.state(); state != EngineState::kAwake)
    return absl::FailedPreconditionError(WhyNotReady(state));
  std::vector<size_t> failed, others;
  for (size_t i = 0; i < parts_.loops.size(); ++i) (parts_.loops.HasFailed(i) ? failed : others).push_back(i);
  size_t num_done = 0;
  for (const std::vector<size_t>* part : {&failed, &others}) {
    for (const size_t i : *part) {
      const absl::Status status = part == &failed ? revival_.ReviveAndWait(i) : RollOne(i, grace, turn);
      if (!status.ok()) {
        LogError("{}the roll ends at replica {}: {}", parts_.options.log_name, i,
                 std::string(status.message()));
        return OfReplica(i, status);
      }
      LogInfo("{}roll: replica {} is back, {} of {} are done", parts_.options.log_name, i, ++num_done,
              parts_.loops.size());
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaRoll::RollOne(size_t replica, absl::Duration grace, CallTurn* turn) {
  absl::Status status = Empty(replica, grace, turn);
  if (status.ok()) status = parts_.loops.loop(replica).Restart();
  parts_.queue.HoldOff(replica, false);
  return status;
}

absl::Status ReplicaRoll::Empty(size_t replica, absl::Duration grace, CallTurn* turn) {
  RETURN_IF_ERROR(revival_.AwaitSettled());
  RETURN_IF_ERROR(MayEmpty(replica));
  parts_.queue.HoldOff(replica, true);
  LogInfo("{}roll: replica {} has {} open requests, which may finish within {}", parts_.options.log_name,
          replica, parts_.queue.num_open(replica), absl::FormatDuration(grace));
  turn->Park();
  const absl::Status waited =
      parts_.waits.AwaitInCall([&] { return parts_.queue.num_open(replica) == 0; }, grace);
  RETURN_IF_ERROR(turn->Retake());
  RETURN_IF_ERROR(waited);
  RETURN_IF_ERROR(turn->Check());
  RETURN_IF_ERROR(revival_.AwaitSettled());
  return MayEmpty(replica);  // further calls may have had their turns meanwhile
}

absl::Status ReplicaRoll::MayEmpty(size_t replica) const {
  if (const EngineState state = parts_.loops.state(replica); state != EngineState::kAwake)
    return absl::FailedPreconditionError(WhyNotReady(state));
  if (!parts_.loops.AnotherServes(replica))
    return absl::FailedPreconditionError("no other replica would serve meanwhile");
  return absl::OkStatus();
}

}  // namespace somnus
