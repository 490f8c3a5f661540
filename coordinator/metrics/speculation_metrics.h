#pragma once
// The counters of speculative decoding, under vLLM's names. A pure function.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/request/speculation_counts.h"

namespace somnus {

struct CounterValue {
  std::string name;
  std::string help;
  int64_t value = 0;
  std::map<std::string, std::string> labels;
};

std::vector<CounterValue> SpeculationCounters(const SpeculationCounts& counts);

}  // namespace somnus
