#include "coordinator/replicas/commands/replica_resize.h"

#include <numeric>

#include "base/status_macros.h"

namespace somnus {
namespace {

int32_t Share(int32_t total, int32_t count) { return total / count + (total % count > 0 ? 1 : 0); }

}  // namespace

ReplicaResize::ReplicaResize(const SetParts& parts, const ResizeKvCacheRequest& request)
    : ReplicaCommand(parts, "a change of the KV cache's size", /*ends_waits=*/false),
      share_(Share(request.total_blocks, static_cast<int32_t>(parts.loops.size()))),
      mapped_(parts.loops.size(), 0) {}

absl::StatusOr<int32_t> ReplicaResize::Run() {
  RETURN_IF_ERROR(turn().status());
  for (const EngineStats& stats : parts().loops.Stats()) before_.push_back(stats.mapped_blocks);
  RETURN_IF_ERROR(RunOnAll().status());
  return std::accumulate(mapped_.begin(), mapped_.end(), 0);
}

absl::StatusOr<TransitionReport> ReplicaResize::DoAt(EngineLoop* loop, size_t replica) {
  ASSIGN_OR_RETURN(mapped_[replica], loop->ResizeKvCache(share_));
  return TransitionReport();
}

absl::StatusOr<TransitionReport> ReplicaResize::UndoAt(EngineLoop* loop, size_t replica) {
  RETURN_IF_ERROR(loop->ResizeKvCache(before_[replica]).status());
  return TransitionReport();
}

}  // namespace somnus
