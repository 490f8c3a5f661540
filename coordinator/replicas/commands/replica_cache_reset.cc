#include "coordinator/replicas/commands/replica_cache_reset.h"

#include "base/status_macros.h"

namespace somnus {

absl::Status ReplicaCacheReset::Run() {
  RETURN_IF_ERROR(turn().status());
  const absl::Status status = RunOnAll().status();
  parts().queue.NoteCachesEmpty();
  return status;
}

absl::StatusOr<TransitionReport> ReplicaCacheReset::DoAt(EngineLoop* loop, size_t /*replica*/) {
  RETURN_IF_ERROR(loop->ResetPrefixCache(request_.preempt_running));
  return TransitionReport();
}

}  // namespace somnus
