#pragma once
// The flags of adapters (LoRA). Plain data.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace somnus {

// An adapter that the server has from its start on.
struct LoraModule {
  std::string name;  // by which clients choose the adapter
  std::string path;  // a directory on the workers' hosts
  std::string base;  // the name of the model that the adapter is for; empty: there is one model
};

struct LoraFlags {
  bool enabled = false;
  std::vector<LoraModule> modules;
  int32_t max_loras = 1;      // different adapters in one step
  int32_t max_cpu_loras = 0;  // that workers hold at once; 0: as MaxAdapters says
  int32_t max_rank = 16;
  int32_t max_names = 16'384;                        // of adapters, held or forgotten
  absl::Duration unload_timeout = absl::Minutes(1);  // for the requests of an adapter that is unloaded
  absl::Duration ready_timeout = absl::Minutes(1);   // for workers that are to read an adapter again
  absl::Duration retry_pause = absl::Seconds(1);     // after a read that has failed
};

// How many adapters the workers hold at once.
inline int32_t MaxAdapters(const LoraFlags& flags) {
  const auto wanted =
      flags.max_cpu_loras > 0 ? flags.max_cpu_loras : static_cast<int32_t>(flags.modules.size());
  return std::max(flags.max_loras, wanted);
}

}  // namespace somnus
