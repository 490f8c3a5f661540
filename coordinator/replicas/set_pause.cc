#include "coordinator/replicas/set_pause.h"

#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "coordinator/replicas/replica_calls.h"
#include "coordinator/replicas/set_call.h"

namespace somnus {

absl::Status PauseReplicas(const SetParts& parts, const PauseRequest& request) {
  const CallTurn turn(parts, "pause", request.mode != SleepMode::kWait);
  RETURN_IF_ERROR(turn.Check());
  CallScope scope(parts, SetCall::kPause);
  RETURN_IF_ERROR(scope.Settle(request.mode));
  const bool was_paused = parts.board.Stats().paused;
  const PauseRequest of_replica = {.clear_cache = request.clear_cache};
  ReplicaCalls calls(parts);
  calls.Run(WithoutReport([&](EngineLoop* loop) { return loop->Pause(of_replica); }));
  const absl::Status status = calls.Sum().status();
  if (status.ok()) return status;
  return calls.Undo(
      status, [&](size_t) { return !was_paused; },
      WithoutReport([](EngineLoop* loop) { return loop->Resume(); }));
}

absl::Status ResumeReplicas(const SetParts& parts) {
  const CallTurn turn(parts, "resume", /*ends_waits=*/true);
  RETURN_IF_ERROR(turn.Check());
  ReplicaCalls calls(parts);
  calls.Run(WithoutReport([](EngineLoop* loop) { return loop->Resume(); }));
  return calls.Sum().status();
}

void EndWaitingOfReplicas(const SetParts& parts, const absl::Status& error) {
  const CallTurn turn(parts, "end_waiting", /*ends_waits=*/false);
  if (!turn.status().ok() || parts.board.state() == EngineState::kAwake) return;
  parts.queue.Refuse(error);
  ReplicaCalls(parts).Run(WithoutReport([&](EngineLoop* loop) {
    loop->EndWaiting(error);
    return absl::OkStatus();
  }));
}

absl::StatusOr<int32_t> ResizeKvCaches(const SetParts& parts, int32_t total_blocks) {
  const CallTurn turn(parts, "a change of the KV cache's size", /*ends_waits=*/false);
  RETURN_IF_ERROR(turn.status());
  const auto count = static_cast<int32_t>(parts.loops.size());
  const int32_t share = total_blocks / count + (total_blocks % count > 0 ? 1 : 0);
  std::vector<int32_t> before, mapped(parts.loops.size(), 0);
  for (const EngineStats& stats : parts.loops.Stats()) before.push_back(stats.mapped_blocks);
  const auto resize = [&](EngineLoop* loop, size_t i, int32_t blocks) -> absl::StatusOr<TransitionReport> {
    ASSIGN_OR_RETURN(mapped[i], loop->ResizeKvCache(blocks));
    return TransitionReport();
  };
  ReplicaCalls calls(parts);
  calls.Run([&](EngineLoop* loop, size_t i) { return resize(loop, i, share); });
  if (absl::Status status = calls.Sum().status(); !status.ok()) {
    return calls.Undo(
        status, [](size_t) { return true; },
        [&](EngineLoop* loop, size_t i) { return resize(loop, i, before[i]); });
  }
  return std::accumulate(mapped.begin(), mapped.end(), 0);
}

absl::Status ResetPrefixCaches(const SetParts& parts, bool preempt_running) {
  const CallTurn turn(parts, "reset_prefix_cache", /*ends_waits=*/false);
  RETURN_IF_ERROR(turn.status());
  ReplicaCalls calls(parts);
  calls.Run(WithoutReport([=](EngineLoop* loop) { return loop->ResetPrefixCache(preempt_running); }));
  parts.queue.NoteCachesEmpty();
  return calls.Sum().status();
}

}  // namespace somnus
