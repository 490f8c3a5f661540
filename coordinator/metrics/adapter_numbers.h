#pragma once
// Which adapters (LoRA) have requests. Plain data.

#include <cstdint>
#include <string>
#include <vector>

namespace somnus {

struct AdapterNumbers {
  int32_t max_loras = 0;             // in one step
  std::vector<std::string> running;  // names, in order
  std::vector<std::string> waiting;
  int32_t num_held = 0;       // by the workers
  int32_t num_forgotten = 0;  // whose files a request would have read again
  int64_t num_reads_again = 0;
};

}  // namespace somnus
