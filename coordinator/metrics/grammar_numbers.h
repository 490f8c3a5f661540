#pragma once
// The numbers of a model's cache of grammars, for /metrics. Values.

#include <cstdint>

namespace somnus {

struct GrammarNumbers {
  int64_t entries = 0;  // grammars and refusals that are kept
  int64_t bytes = 0;
  int64_t waiting = 0;  // calls that wait for a compile
  // Counters since the start.
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t refused = 0;  // compiles that ended in an error
  int64_t expired = 0;  // calls that waited for too long
  int64_t evicted = 0;
};

}  // namespace somnus
