#include "coordinator/operators/lifecycle_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/request_bounds.h"
#include "base/utf8.h"
#include "coordinator/metrics/metrics.h"
#include "proto/missing_memory.h"

namespace somnus {
namespace {

ApiError BadTag(const std::string& tag, absl::string_view others) {
  return BadRequest("tags", absl::StrCat("tags must be among ", kMemoryTagNames, others, "; there is no \"",
                                         CleanMessage(tag), "\", and nothing was done"));
}

// An operator's call under way, for metrics.
class CountedOperation {
 public:
  CountedOperation(const ServedModel& model, const char* operation)
      : metrics_(model.metrics), operation_(operation) {
    if (metrics_ != nullptr) metrics_->OnSleepOperationBegan(operation_);
  }
  ~CountedOperation() {
    if (metrics_ != nullptr) metrics_->OnSleepOperationEnded(operation_, MonotonicNow() - begin_, succeeded_);
  }
  CountedOperation(const CountedOperation&) = delete;
  void NoteSuccess() { succeeded_ = true; }

 private:
  const std::shared_ptr<Metrics> metrics_;
  const char* const operation_;
  const MonotonicTime begin_ = MonotonicNow();
  bool succeeded_ = false;
};

// States that end without an operator, or with the process.
bool Passes(EngineState state) {
  return state == EngineState::kLoading || state == EngineState::kRecovering ||
         state == EngineState::kDraining || state == EngineState::kFailed;
}

}  // namespace

std::optional<ApiError> CheckSleepLevel(int64_t level) {
  if (level == kPauseLevel || (level >= kMinSleepLevel && level <= kMaxSleepLevel)) return std::nullopt;
  return BadRequest("level", absl::StrCat("level must be ", kPauseLevel, ", ", kSleepLevelNames));
}

std::optional<ApiError> CheckSleepTags(int64_t level, const std::vector<std::string>& tags) {
  if (level == kPauseLevel && !tags.empty())
    return BadRequest("tags", "tags are of levels 1 and 2; level 0 releases no memory");
  for (const std::string& tag : tags) {
    if (!IsMemoryTag(tag)) return BadTag(tag, "");
  }
  return std::nullopt;
}

std::optional<ApiError> CheckWakeUpTags(const std::vector<std::string>& tags) {
  for (const std::string& tag : tags) {
    if (!IsMemoryTag(tag) && tag != kSchedulingTag) return BadTag(tag, absl::StrCat(", or ", kSchedulingTag));
  }
  return std::nullopt;
}

std::optional<SleepMode> ParseSleepMode(absl::string_view word) {
  if (word == "abort") return SleepMode::kAbort;
  if (word == "wait") return SleepMode::kWait;
  if (word == "keep") return SleepMode::kKeep;
  return std::nullopt;
}

ApiError BadSleepMode() { return BadRequest("mode", "mode must be abort, wait or keep"); }

std::optional<ApiError> CheckRollGrace(double seconds) {
  if (seconds >= 0 && seconds <= kMaxRollGraceSeconds) return std::nullopt;  // false for NaN
  return BadRequest("grace_s", absl::StrCat("grace_s must be from 0 to ", kMaxRollGraceSeconds));
}

ApiError LifecycleError(const absl::Status& status, const Engine& engine) {
  ApiError error = FromStatus(status);
  if (absl::IsFailedPrecondition(status) && !Passes(engine.state())) error.status = 409;
  if (absl::IsResourceExhausted(status)) error.status = 503;  // short memory is no fault of the client
  error.missing = MissingOf(status);
  return error;
}

absl::StatusOr<SleepResult> SleepEngine(const ServedModel& model, const SleepRequest& request,
                                        const char* operation) {
  CountedOperation counted(model, operation);
  Engine* const engine = model.engine.get();
  const MonotonicTime start = MonotonicNow();
  SleepResult result;
  if (request.level == kPauseLevel) {
    result.already_asleep = engine->Stats().paused;
    const absl::StatusOr<absl::Duration> paused =
        PauseEngine(engine, {.mode = request.mode, .clear_cache = false});
    if (!paused.ok()) return paused.status();
    counted.NoteSuccess();
    result.level = engine->Stats().sleep_level;
    result.duration = *paused;
    return result;
  }
  absl::StatusOr<TransitionReport> report = engine->Sleep(request);
  if (!report.ok()) return report.status();
  counted.NoteSuccess();
  result.already_asleep = !report->changed();
  result.level = engine->Stats().sleep_level;
  // A wake-up that came right after this call does not change what the call did, hence the maximum.
  if (request.tags.empty()) result.level = std::max(request.level, result.level);
  result.report = *std::move(report);
  result.duration = MonotonicNow() - start;
  return result;
}

absl::StatusOr<WakeUpResult> WakeUpEngine(const ServedModel& model, const std::vector<std::string>& tags,
                                          std::optional<bool> load_weights) {
  CountedOperation counted(model, "wake");
  Engine* const engine = model.engine.get();
  const MonotonicTime start = MonotonicNow();
  absl::StatusOr<TransitionReport> report = engine->WakeUp(tags, load_weights);
  if (!report.ok()) return report.status();
  counted.NoteSuccess();
  WakeUpResult result;
  result.awake = engine->state() == EngineState::kAwake;
  result.already_resident = !report->changed();
  result.report = *std::move(report);
  result.duration = MonotonicNow() - start;
  return result;
}

absl::StatusOr<absl::Duration> PauseEngine(Engine* engine, const PauseRequest& request) {
  const MonotonicTime start = MonotonicNow();
  if (absl::Status status = engine->Pause(request); !status.ok()) return status;
  return MonotonicNow() - start;
}

int AbortRequests(const ServedModel& model, const std::optional<std::vector<std::string>>& response_ids) {
  const OpenRequests::Found found = model.open_requests->Find(response_ids);
  for (const std::string& id : found.engine_ids) model.engine->Abort(id);
  return found.num_requests;
}

std::optional<ApiError> CheckWeightsVersion(int64_t version) {
  if (version >= 1) return std::nullopt;
  return BadRequest("weight_version", "weight_version must be a whole number, at least 1");
}

std::optional<ApiError> CheckWeightLabel(const char* field, const std::string& label) {
  if (!label.empty() && label.size() <= kMaxWeightLabelBytes && IsUtf8(label)) return std::nullopt;
  return BadRequest(field, absl::StrCat(field, " must be a text of 1 to ", kMaxWeightLabelBytes, " bytes"));
}

absl::StatusOr<WeightsResult> ReloadEngine(Engine* engine, const WeightsRequest& request) {
  const MonotonicTime start = MonotonicNow();
  absl::StatusOr<WeightsChange> change = engine->ReloadWeights(request);
  if (!change.ok()) return change.status();
  return WeightsResult{*std::move(change), MonotonicNow() - start};
}

absl::StatusOr<absl::Duration> ReviveEngine(Engine* engine) {
  const MonotonicTime start = MonotonicNow();
  if (absl::Status status = engine->Revive(/*asleep=*/false); !status.ok()) return status;
  return MonotonicNow() - start;
}

absl::StatusOr<RollResult> RollEngine(Engine* engine, absl::Duration grace) {
  const MonotonicTime start = MonotonicNow();
  if (absl::Status status = engine->Roll(grace); !status.ok()) return status;
  return RollResult{static_cast<int>(engine->Stats().replicas.size()), MonotonicNow() - start};
}

}  // namespace somnus
