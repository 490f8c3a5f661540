#pragma once
// All worker processes of a simulated cluster: remote workers are started, and started again at their end, as
// Slurm and Kubernetes do; at the end nobody is left.

#include <cstdint>
#include <string>

#include "coordinator/flags/flags.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Fleet {
 public:
  explicit Fleet(Site* site) : site_(*site), world_(site->world) {}

  // Starts the remote workers of the group with the given flags.
  void StartRemote(const Flags& flags, int group);
  // Whether a worker that ends is started again.
  bool restarts() const { return restarts_; }
  void EndRestarts() { restarts_ = false; }
  // Kills every remote worker that is stopped, as a person does who looks after the hosts.
  void KillStopped();
  // Returns once all workers have ended. Local workers have ended already; remote workers look for a
  // coordinator for a while.
  void AwaitEnd(bool local_workers);
  void CheckNobodyIsLeft();

 private:
  // A host that hangs is found by somebody, some time.
  void LookAfter(int pid);
  void StartRemoteWorker(const std::string& coordinator, int group, int rank);
  int64_t NumLive() const;

  Site& site_;
  World& world_;
  bool restarts_ = true;
};

}  // namespace somnus::simulation
