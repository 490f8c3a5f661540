#pragma once
// Which cores of a hybrid processor compute, and for which rank. Pure functions.
//
// All threads of a step wait for the last one, so each has a share of every op in proportion to its core's
// speed (CpuDeviceOptions::thread_speeds), and each rank has as many cores of every speed as the others.
//
// The rule. The fastest cores compute. The cores of the next speed compute, too, where together they add at
// least a quarter to the arithmetic of the faster cores; and so on, until a speed adds less. The speeds are
// estimates: where the slow cores' speed is a fifth too high, the fast cores wait for the slow cores, which
// takes away just as much as a quarter has added. Work that waits for memory, as a decode step does, gains
// nothing from them, because the fast cores alone take all of its bandwidth; it loses nothing either, because
// those with smaller shares are done sooner, and the others go on with the whole bandwidth.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace somnus {

struct CoreSharesRequest {
  std::vector<int> cores;   // one CPU of each
  std::vector<int> others;  // CPUs on which nothing computes
  int ranks = 1;            // that divide them
  int num_threads = 0;      // that a rank was told to have; 0: the rule says
  int most_threads = 0;     // of a rank, by the rule
};

struct CoreShares {
  std::vector<int> cpus;    // rank by rank, of each the fastest first; then those on which nothing computes
  int num_threads = 0;      // of each rank
  std::string description;  // of the choice, for people; empty where the rule was not asked
};

// `speeds` as in CpuTopology. Nothing where all cores are alike, where no speed has a core for every rank, or
// where the ranks cannot have num_threads cores each.
std::optional<CoreShares> ShareCores(const CoreSharesRequest& request, const std::map<int, double>& speeds);

// Of a CPU; 1 where nothing is known of it.
double SpeedOf(const std::map<int, double>& speeds, int cpu);

}  // namespace somnus
