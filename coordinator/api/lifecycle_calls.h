#pragma once
// Sleep, wake-up and roll for operators: the rules that HTTP and gRPC share. Thread safe. SleepEngine,
// WakeUpEngine and RollEngine block until all ranks have replied; their errors are the engine's.

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
  int level = 0;  // the engine's level after the call, which may be deeper than the requested one
  bool already_asleep = false;  // it was asleep at that level or a deeper one: nothing was done
  TransitionReport report;
  absl::Duration duration;
};

struct WakeUpResult {
  bool awake = false;             // every tag is resident
  bool already_resident = false;  // the requested tags were resident: nothing was done
  TransitionReport report;
  absl::Duration duration;
};

struct RollResult {
  int num_replicas = 0;
  absl::Duration duration;
};

// For requests that are open at a replica which is restarted.
inline constexpr absl::Duration kDefaultRollGrace = absl::Seconds(10);
inline constexpr double kMaxRollGraceSeconds = 24 * 3600;

// Returns what is wrong with a level, or with tags; nullopt: nothing.
std::optional<ApiError> CheckSleepLevel(int64_t level);
std::optional<ApiError> CheckWakeUpTags(const std::vector<std::string>& tags);
std::optional<ApiError> CheckRollGrace(double seconds);

absl::StatusOr<SleepResult> SleepEngine(Engine* engine, const SleepRequest& request);
// Empty `tags`: all of them.
absl::StatusOr<WakeUpResult> WakeUpEngine(Engine* engine, const std::vector<std::string>& tags);

absl::StatusOr<RollResult> RollEngine(Engine* engine, absl::Duration grace);

}  // namespace somnus
