#pragma once
// The invariants between several simulated models: together the models keep to the budgets, and a sleeping
// model has given memory back.

#include <cstdint>
#include <vector>

#include "coordinator/several_models/residency_policy.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class ModelsInvariants {
 public:
  ModelsInvariants(Site* site, const ResidencyOptions& budgets)
      : site_(*site), world_(site->world), budgets_(budgets) {}

  // The device memory of all workers is within the budget. To be called whenever a worker has taken memory.
  void CheckDeviceMemory();
  // The host memory of all workers is within the budget. To be called at any time.
  void CheckHostMemory();
  // A model has no device memory when its engine says that all tags sleep.
  void CheckAsleep(int model);

 private:
  // The sum over the ranks of all models. A process whose place a new process has taken still has memory for
  // a while, so that a rank counts once.
  template <typename Bytes>
  int64_t SumOverRanks(const Bytes& bytes) const;

  Site& site_;
  World& world_;
  const ResidencyOptions budgets_;
};

}  // namespace somnus::simulation
