#pragma once
// Which errors of lifecycle calls the faults of a simulated cluster explain.

#include <utility>

#include "absl/status/status.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class ErrorsOfFaults {
 public:
  ErrorsOfFaults(const Site* site, const Faults* faults) : disk_(site->disk), faults_(*faults) {}

  // Each error of a disk has a separate fault, so an error of a disk is explained once.
  bool Explain(const absl::Status& status) {
    if (absl::IsResourceExhausted(status) && std::exchange(seen_full_, disk_.num_full()) < disk_.num_full())
      return true;
    if (absl::IsDataLoss(status) && std::exchange(seen_damaged_, disk_.num_damaged()) < disk_.num_damaged())
      return true;
    return faults_.memory_fails() || (absl::IsDataLoss(status) && faults_.damaged());
  }

 private:
  const Disk& disk_;
  const Faults& faults_;
  int seen_full_ = 0, seen_damaged_ = 0;  // Disk::num_full and num_damaged, at the last errors
};

}  // namespace somnus::simulation
