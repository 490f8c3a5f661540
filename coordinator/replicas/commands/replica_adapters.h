#pragma once
// The adapters that all replicas hold (SetAdaptersRequest). Where a replica cannot load an adapter, or reads
// different files, all replicas are left with the adapters of the request that were held before. A failed
// replica gets the adapters when new workers revive the replica.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_command.h"

namespace somnus {

class ReplicaAdapters : public ReplicaCommand {
 public:
  // `held`: the adapters of all replicas; borrowed, and changed by Run.
  ReplicaAdapters(const SetParts& parts, const SetAdaptersRequest& request, std::vector<HeldAdapter>* held)
      : ReplicaCommand(parts, "a change of the adapters", /*ends_waits=*/false),
        request_(request),
        held_(*held) {}

  absl::StatusOr<TransitionReport> Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;
  bool Undoes(size_t /*replica*/) const override { return true; }
  absl::StatusOr<TransitionReport> UndoAt(EngineLoop* loop, size_t replica) override;

  // DataLoss: another replica has read different files.
  absl::Status Compare(const TransitionReport& report, size_t replica);

  const SetAdaptersRequest request_;
  std::vector<HeldAdapter>& held_;
  std::vector<HeldAdapter> kept_;  // of the request, that the replicas hold before
  absl::Mutex mu_;
  std::map<uint64_t, std::string> fingerprints_ ABSL_GUARDED_BY(mu_);  // by the first replica that has read
};

}  // namespace somnus
