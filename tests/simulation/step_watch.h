#pragma once
// Which steps the ranks of a group compute, in each epoch, and the invariant on these steps: no more steps
// are in flight than the coordinator may send ahead, and a rank's memory changes only when no rank computes.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/world.h"

namespace somnus::simulation {

class StepWatch {
 public:
  explicit StepWatch(World* world) : world_(*world) {}

  // Groups have `num_ranks` ranks in `num_stages` stages, and up to `most` steps in flight. Before this call
  // nothing is checked.
  void SetShape(int num_ranks, int num_stages, int most);
  // Rank `rank` of a group, which is the process that runs, computes its next step of the epoch, and has
  // computed the step.
  void Begin(int group, int64_t epoch, int rank);
  void End(int group, int64_t epoch, int rank);
  // Called when a rank of the group changes its device memory in the epoch.
  void CheckNone(int group, int64_t epoch, const std::string& who);
  // How often a rank began a step while a rank of another stage computed another step.
  int64_t num_beside() const { return num_beside_; }

 private:
  // A coordinator that comes back may use an epoch's number again, with other processes.
  struct Rank {
    int pid = 0;
    int64_t begun = 0, ended = 0;  // steps of the epoch
  };

  std::vector<Rank>& RanksOf(int group, int64_t epoch);

  World& world_;
  int num_ranks_ = 0, num_stages_ = 1, most_ = 0;
  std::map<std::pair<int, int64_t>, std::vector<Rank>> ranks_;  // by group and epoch
  int64_t num_beside_ = 0;
};

}  // namespace somnus::simulation
