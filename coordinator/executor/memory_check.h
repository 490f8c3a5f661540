#pragma once
// Whether the memory of all ranks suffices for a wake-up, before any of them maps some; and what ranks and
// replicas lack together, as errors carry it (proto/missing_memory.h). Pure functions.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace somnus {

// What a wake-up would map on one rank.
struct RankNeed {
  std::string name;     // of the rank, for the message
  std::string account;  // ranks with the same one take from the same memory; a rank's own has its name
  std::map<std::string, int64_t> bytes_by_tag;
  int64_t available_bytes = 0;  // in the account, as this rank sees it
};

// `ranks`: by rank. ResourceExhausted names the ranks of the accounts that do not suffice, and how much is
// missing; it carries the shortage of each of their tags: parts of what the account lacks, in proportion to
// what the tags need.
absl::Status CheckMemory(const std::vector<RankNeed>& ranks);

// As CheckMemory, of all replicas together: those on one host take from the same memory. The message and what
// is missing name the replicas. `replicas`: by replica, what is known of its ranks.
absl::Status CheckMemoryOfReplicas(const std::vector<std::vector<RankNeed>>& replicas);

// Returns `first`, which is an error of a call or ok. If it says that memory is missing, the message and what
// is missing are those of all `errors` that say so.
absl::Status WithMissingOfAll(const absl::Status& first, const std::vector<absl::Status>& errors);

// An error of that replica: its message says so, and what is missing is the replica's.
absl::Status OfReplica(size_t replica, const absl::Status& status);

}  // namespace somnus
