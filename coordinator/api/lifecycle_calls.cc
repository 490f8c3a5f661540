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

absl::StatusOr<SleepResult> SleepEngine(Engine* engine, const SleepRequest& request) {
  const MonotonicTime start = MonotonicNow();
  absl::StatusOr<TransitionReport> report = engine->Sleep(request);
  if (!report.ok()) return report.status();
  SleepResult result;
  result.already_asleep = !report->changed();
  // A wake-up that came right after this call does not change what the call did, hence the maximum.
  result.level = std::max(request.level, engine->Stats().sleep_level);
  result.report = *std::move(report);
  result.duration = MonotonicNow() - start;
  return result;
}

absl::StatusOr<WakeUpResult> WakeUpEngine(Engine* engine, const std::vector<std::string>& tags) {
  const MonotonicTime start = MonotonicNow();
  absl::StatusOr<TransitionReport> report = engine->WakeUp(tags);
  if (!report.ok()) return report.status();
  WakeUpResult result;
  result.awake = engine->state() == EngineState::kAwake;
  result.already_resident = !report->changed();
  result.report = *std::move(report);
  result.duration = MonotonicNow() - start;
  return result;
}

absl::StatusOr<RollResult> RollEngine(Engine* engine, absl::Duration grace) {
  const MonotonicTime start = MonotonicNow();
  if (absl::Status status = engine->Roll(grace); !status.ok()) return status;
  return RollResult{static_cast<int>(engine->Stats().replicas.size()), MonotonicNow() - start};
}

}  // namespace somnus
