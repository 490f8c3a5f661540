#pragma once
// Whether the memory of all ranks suffices for a wake-up, before any rank maps memory; and the bytes that
// ranks and replicas lack together, as a payload of errors (proto/missing_memory.h). Pure functions.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace somnus {

// The bytes that a wake-up would map on one rank.
struct RankNeed {
  std::string name;     // of the rank, for the message
  std::string account;  // ranks with the same account take from the same memory; an account of one rank has
                        // the rank's name
  std::map<std::string, int64_t> bytes_by_tag;
  int64_t available_bytes = 0;  // in the account, as this rank sees it
};

// `ranks`: by rank. ResourceExhausted names the ranks of the accounts that do not suffice, and how much is
// missing; the error carries the shortage of each tag: a part of the account's missing bytes, in proportion
// to the tag's need.
absl::Status CheckMemory(const std::vector<RankNeed>& ranks);

// As CheckMemory, of all replicas together: replicas on one host take from the same memory. The message and
// the shortages name the replicas. `replicas`: the known ranks of each replica.
absl::Status CheckMemoryOfReplicas(const std::vector<std::vector<RankNeed>>& replicas);

// Returns `first`, which is an error of a call or ok. If `first` says that memory is missing, the message and
// the shortages are of all `errors` that say so.
absl::Status WithMissingOfAll(const absl::Status& first, const std::vector<absl::Status>& errors);

// `status` as an error of `replica`: the message names the replica, and so do the shortages.
absl::Status OfReplica(size_t replica, const absl::Status& status);

}  // namespace somnus
