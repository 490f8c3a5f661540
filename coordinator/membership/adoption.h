#pragma once
// Whether a worker that was left by an earlier coordinator may go on with its weights and memory. A pure
// function.

#include <cstdint>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace somnus {

// The model and options that this coordinator would have loaded, and where. Vectors are by rank.
struct AdoptionTerms {
  std::string build_id;  // of the program that a new worker would run; empty: any
  std::string checkpoint_fingerprint;
  std::vector<std::string> options_digests;  // as many as the group has ranks
  int64_t weights_version = 1;
  std::vector<int32_t> device_indices;  // of GPUs; empty: any
};

struct Adoption {
  v1::RegisterAction action = v1::REGISTER_ACTION_ADOPT;
  std::string reason;  // why the worker is not adopted: "options: they are not those of this coordinator"
};

// `rank` is the rank that `worker` would have; -1: any. A worker that no coordinator has used yet may stay; a
// used worker without weights may still be loading, and has to leave.
Adoption DecideAdoption(const v1::RegisterRequest& worker, int32_t rank, const AdoptionTerms& terms);
// As above, for a registering worker. Its rank is the rank of its weights, or else its preferred rank.
Adoption DecideAdoption(const v1::RegisterRequest& worker, const AdoptionTerms& terms);

}  // namespace somnus
