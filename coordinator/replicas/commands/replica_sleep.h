#pragma once
// A sleep of all replicas (SleepRequest): settles the open requests of the whole engine, then puts every
// replica to sleep. Where a replica cannot sleep, the tags that the others have released are woken.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_transition.h"

namespace somnus {

class ReplicaSleep : public ReplicaTransition {
 public:
  ReplicaSleep(const SetParts& parts, const SleepRequest& request);

  absl::StatusOr<TransitionReport> Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;
  bool Undoes(size_t replica) const override { return !Released(replica).empty(); }
  absl::StatusOr<TransitionReport> UndoAt(EngineLoop* loop, size_t replica) override;

  SleepSpec spec() const { return {.level = request_.level, .tags = request_.tags}; }
  // The sleep would lose weights that no file has.
  bool LosesOnlyCopy() const;
  // Each replica's share of max_kept_bytes: as much as the replica would keep, in the order of the replicas;
  // the last replicas have to do with less.
  std::vector<std::optional<int64_t>> ShareKeptBytes() const;
  // The tags that a wake-up has to bring back to undo the sleep of a replica.
  std::vector<std::string> Released(size_t replica) const;

  const SleepRequest request_;
  std::vector<std::optional<int64_t>> kept_bytes_;  // by replica
};

}  // namespace somnus
