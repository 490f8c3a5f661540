#pragma once
// Ranks on emulated GPUs.

#include "kernels/cuda/emulated_device.h"
#include "proto/status_macros.h"
#include "tests/fakes/emulated_vmm_driver.h"
#include "tests/runner/rank_group.h"

namespace somnus {

inline MakeRankDevice EmulatedRanks(uint64_t seed = 1) {
  return [seed](int rank) -> absl::StatusOr<RankDevice> {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateEmulatedCudaDevice({.index = 0, .seed = seed}));
    return RankDevice{std::make_unique<EmulatedVmmDriver>(), std::move(device)};
  };
}

}  // namespace somnus
