#pragma once
// Sleep, wake-up, pause, roll and reload for operators: the rules that HTTP and gRPC share. Thread safe.
// SleepEngine, WakeUpEngine, PauseEngine, ReviveEngine, RollEngine and ReloadEngine block until all ranks
// have replied; their errors are the engine's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "coordinator/http/api_error.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

struct SleepResult {
  int level = 0;  // the engine's level after the call, which may be deeper than the requested level
  bool already_asleep = false;  // the engine was asleep at that level or deeper: nothing was done
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

struct WeightsResult {
  WeightsChange change;
  absl::Duration duration;
};

// For requests that are open at a replica which is restarted.
inline constexpr absl::Duration kDefaultRollGrace = absl::Seconds(10);
inline constexpr double kMaxRollGraceSeconds = 24 * 3600;

// Returns the fault of a level, or of tags; nullopt: none.
std::optional<ApiError> CheckSleepLevel(int64_t level);
// Level 0 is a pause, which releases nothing and takes no tags.
std::optional<ApiError> CheckSleepTags(int64_t level, const std::vector<std::string>& tags);
std::optional<ApiError> CheckWakeUpTags(const std::vector<std::string>& tags);
// "abort", "wait" or "keep"; nullopt for any other word.
std::optional<SleepMode> ParseSleepMode(absl::string_view word);
ApiError BadSleepMode();
std::optional<ApiError> CheckRollGrace(double seconds);
std::optional<ApiError> CheckWeightsVersion(int64_t version);
// `field`: the label's name in the request.
std::optional<ApiError> CheckWeightLabel(const char* field, const std::string& label);

// The HTTP error of a call that the engine has refused or could not do. The status is the status of
// FromStatus, with two exceptions. A call that fails again until an operator has done something else is a
// 409, where the engine itself is well. Missing memory or disk is a 500, as in vLLM: nobody has sent too many
// requests. The error says how much memory or disk which rank lacks.
ApiError LifecycleError(const absl::Status& status, const Engine& engine);

// `request`: of an operator, whose level 0 is a pause that keeps the prefix cache; the engine gets a pause
// then, since an engine's own sleeps have levels 1 and 2 alone.
// `operation`: for the metrics of operators' calls (Metrics::OnSleepOperationBegan).
absl::StatusOr<SleepResult> SleepEngine(const ServedModel& model, const SleepRequest& request,
                                        const char* operation = "sleep");
// Empty `tags`: all tags. `load_weights`: as of WakeUpRequest.
absl::StatusOr<WakeUpResult> WakeUpEngine(const ServedModel& model, const std::vector<std::string>& tags,
                                          std::optional<bool> load_weights);

absl::StatusOr<absl::Duration> PauseEngine(Engine* engine, const PauseRequest& request);

// The clients' requests whose responses have these ids, or all requests, end with finish_reason "abort". Does
// not wait for the ends. Returns the number of requests.
int AbortRequests(const ServedModel& model, const std::optional<std::vector<std::string>>& response_ids);

absl::StatusOr<WeightsResult> ReloadEngine(Engine* engine, const WeightsRequest& request);

// A revival to the state before the failure, unless the engine shares its devices with other models.
absl::StatusOr<absl::Duration> ReviveEngine(Engine* engine);
absl::StatusOr<RollResult> RollEngine(Engine* engine, absl::Duration grace);

}  // namespace somnus
