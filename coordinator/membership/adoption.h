#pragma once
// Whether a worker that was left by an earlier coordinator may go on with what it holds. A pure function.

#include <cstdint>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace somnus {

// What this coordinator would have loaded, and where. Vectors are by rank.
struct AdoptionTerms {
  std::string build_id;  // of the program that a new worker would run; empty: any
  std::string checkpoint_fingerprint;
  std::vector<std::string> options_digests;  // as many as the group has ranks
  int64_t weights_version = 1;
  std::vector<int32_t> device_indices;  // of GPUs; empty: any
};

struct Adoption {
  v1::RegisterAction action = v1::REGISTER_ACTION_ADOPT;
  std::string reason;  // why it is not adopted: "options: they are not those of this coordinator"
};

// `rank` is the one that `worker` would have; -1: any. A worker that no coordinator has used yet may stay;
// one that was used and holds no weights may still be loading, and has to leave.
Adoption DecideAdoption(const v1::RegisterRequest& worker, int32_t rank, const AdoptionTerms& terms);
// The same for a worker that registers: its rank is that of its weights, else the one that it prefers.
Adoption DecideAdoption(const v1::RegisterRequest& worker, const AdoptionTerms& terms);

}  // namespace somnus
