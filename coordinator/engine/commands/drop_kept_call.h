#pragma once
// Gives up the KV blocks that host tiers have kept while the cache sleeps, by a sleep of the cache at the
// deepest level. No tag changes, so that a loss of the group leaves nothing to note.

#include "absl/status/status.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {

class DropKeptCall {
 public:
  bool under_way() const { return under_way_; }
  void Begin(LoopAccess* loop);
  void OnResult(LoopAccess* loop, const absl::Status& status);
  void OnLoss() { under_way_ = false; }

 private:
  bool under_way_ = false;
};

}  // namespace somnus
