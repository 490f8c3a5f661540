#pragma once
// The effects of a transition, a sleep or a wake-up: on every tag, and on every rank. Plain values.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/residency/residency.h"

namespace somnus {

// Bytes of one tag on one rank.
struct TagReport {
  int64_t freed_bytes = 0;      // of device memory that the transition released
  int64_t backed_up_bytes = 0;  // that a copy holds now, for the wake-up
  int64_t discarded_bytes = 0;  // whose contents the transition gave up
  int64_t mapped_bytes = 0;     // of device memory that the transition mapped
  int64_t resident_bytes = 0;   // of device memory, after the transition
  int64_t host_bytes = 0;       // of host memory of backups, kept blocks and adapters after the transition
  int64_t file_bytes = 0;       // of files that hold backups after the transition
  int64_t sleeping_bytes = 0;   // of device memory that a wake-up would map after the transition

  bool operator==(const TagReport&) const = default;
};

// Seconds that one rank took for each phase. copy, map, release and read are parts of prepare and commit.
struct PhaseSeconds {
  double prepare = 0;
  double commit = 0;
  double copy = 0;     // into backups or out of backups, which overlaps with map
  double map = 0;      // of new memory
  double release = 0;  // of memory
  double read = 0;     // of weights from the checkpoint

  bool operator==(const PhaseSeconds&) const = default;
};

struct RankReport {
  int replica = 0;
  int rank = 0;
  std::map<std::string, TagReport> tags;  // every tag of the rank's memory
  PhaseSeconds seconds;

  bool operator==(const RankReport&) const = default;
};

// The outcome for a tag that the request named, or that went along.
struct TagOutcome {
  TagState state = TagState::kResident;  // after the transition
  bool changed = false;  // by the transition; false: the tag was in that state before, and nothing was done

  bool operator==(const TagOutcome&) const = default;
};

struct TransitionReport {
  // Tags that the request named (all tags where the request named none), and tags that were changed.
  std::map<std::string, TagOutcome> tags;
  std::vector<RankReport> ranks;  // empty where nothing was done
  // After a change of the adapters (LoRA): fingerprints by adapter id.
  std::map<uint64_t, std::string> adapters;

  // Whether the transition did anything.
  bool changed() const;
  // Summed over ranks, by tag; a tag with 0 is left out.
  TagBytes freed_bytes() const;
  TagBytes mapped_bytes() const;

  // The ranks of `other`, the report of another replica, follow the ranks of this report; a tag is as shallow
  // as on either replica.
  void Add(const TransitionReport& other, int replica);
};

}  // namespace somnus
