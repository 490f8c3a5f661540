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
};

}  // namespace somnus
