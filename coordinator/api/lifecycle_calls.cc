#include "coordinator/api/lifecycle_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/request_bounds.h"

namespace somnus {

std::optional<ApiError> CheckSleepLevel(int64_t level) {
  if (level >= kMinSleepLevel && level <= kMaxSleepLevel) return std::nullopt;
  return BadRequest("level", absl::StrCat("level must be ", kSleepLevelNames));
}

std::optional<ApiError> CheckWakeUpTags(const std::vector<std::string>& tags) {
  if (std::all_of(tags.begin(), tags.end(), [](const std::string& tag) { return IsMemoryTag(tag); })) {
    return std::nullopt;
  }
  return BadRequest("tags", absl::StrCat("tags must be among ", kMemoryTagNames));
}

std::optional<ApiError> CheckRollGrace(double seconds) {
  if (seconds >= 0 && seconds <= kMaxRollGraceSeconds) return std::nullopt;  // false for what is not a number
  return BadRequest("grace_s", absl::StrCat("grace_s must be from 0 to ", kMaxRollGraceSeconds));
}

absl::StatusOr<SleepResult> SleepEngine(Engine* engine, int level) {
  const MonotonicTime start = MonotonicNow();
  const int level_before = engine->Stats().sleep_level;
  absl::StatusOr<TagBytes> freed = engine->Sleep(level);
  if (!freed.ok()) return freed.status();
  SleepResult result;
  // A call that put anything to sleep has tags in `freed`; one that only went deeper released no device
  // memory.
  result.already_asleep = freed->empty() && level_before >= level;
  // A wake-up that came right after this call does not change what the call did, hence the maximum.
  result.level = std::max(level, engine->Stats().sleep_level);
  result.freed_bytes = *std::move(freed);
  result.duration = MonotonicNow() - start;
  return result;
}

absl::StatusOr<WakeUpResult> WakeUpEngine(Engine* engine, const std::vector<std::string>& tags) {
  const MonotonicTime start = MonotonicNow();
  absl::StatusOr<TagBytes> mapped = engine->WakeUp(tags);
  if (!mapped.ok()) return mapped.status();
  WakeUpResult result;
  result.awake = engine->state() == EngineState::kAwake;
  result.already_resident = mapped->empty();
  result.mapped_bytes = *std::move(mapped);
  result.duration = MonotonicNow() - start;
  return result;
}

absl::StatusOr<RollResult> RollEngine(Engine* engine, absl::Duration grace) {
  const MonotonicTime start = MonotonicNow();
  if (absl::Status status = engine->Roll(grace); !status.ok()) return status;
  return RollResult{static_cast<int>(engine->Stats().replicas.size()), MonotonicNow() - start};
}

}  // namespace somnus
