#pragma once
// Sleep and wake-up as operators ask for them: the rules that HTTP and gRPC share. Thread safe. SleepEngine
// and WakeUpEngine block until all ranks have answered; their errors are the engine's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/api/api_error.h"
#include "coordinator/engine/engine.h"

namespace somnus {

struct SleepResult {
  int level = 0;                // the engine's now; deeper than what was asked for if it was already
  bool already_asleep = false;  // at that level: nothing was done
  TagBytes freed_bytes;         // by tag, summed over ranks
  absl::Duration duration;
};

struct WakeUpResult {
  bool awake = false;             // every tag is resident
  bool already_resident = false;  // what was asked for: nothing was done
  TagBytes mapped_bytes;
  absl::Duration duration;
};

// What is wrong with a level, or with tags; nullopt: nothing.
std::optional<ApiError> CheckSleepLevel(int64_t level);
std::optional<ApiError> CheckWakeUpTags(const std::vector<std::string>& tags);

absl::StatusOr<SleepResult> SleepEngine(Engine* engine, int level);
// No tags: all of them.
absl::StatusOr<WakeUpResult> WakeUpEngine(Engine* engine, const std::vector<std::string>& tags);

}  // namespace somnus
