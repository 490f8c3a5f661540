#pragma once
// The result of one simulated run.

#include <cstdint>
#include <map>
#include <string>

namespace somnus::simulation {

// How often something was done, by the name in a report ("requests"), to see that runs try something.
using Counts = std::map<std::string, int64_t>;

struct Outcome {
  std::string violation;  // empty: all invariants held
  uint64_t trace = 0;     // of everything that was done, in order
  Counts counts;
};

}  // namespace somnus::simulation
