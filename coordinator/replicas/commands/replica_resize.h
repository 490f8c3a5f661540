#pragma once
// A new size of the KV caches of all replicas (ResizeKvCacheRequest), which share the number of blocks
// evenly. Where a replica cannot be resized, the others get their sizes of before.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_command.h"

namespace somnus {

class ReplicaResize : public ReplicaCommand {
 public:
  ReplicaResize(const SetParts& parts, const ResizeKvCacheRequest& request);

  // How many blocks have memory at all replicas together.
  absl::StatusOr<int32_t> Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;
  bool Undoes(size_t /*replica*/) const override { return true; }
  absl::StatusOr<TransitionReport> UndoAt(EngineLoop* loop, size_t replica) override;

  const int32_t share_;          // blocks of each replica, rounded up
  std::vector<int32_t> before_;  // blocks that had memory, by replica
  std::vector<int32_t> mapped_;  // blocks that have memory, by replica
};

}  // namespace somnus
