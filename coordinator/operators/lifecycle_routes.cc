#include "coordinator/operators/lifecycle_routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "coordinator/http/json_body.h"
#include "coordinator/operators/adapter_calls.h"
#include "coordinator/operators/collective_rpc.h"
#include "coordinator/operators/lifecycle_calls.h"
#include "coordinator/operators/report_json.h"
#include "coordinator/operators/trace_route.h"
#include "coordinator/operators/weight_checker.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

HttpResponse Slept(const ServedModel& model, const SleepRequest& request, const char* operation,
                   const char* done) {
  const absl::StatusOr<SleepResult> result = SleepEngine(model, request, operation);
  if (!result.ok()) return ErrorResponse(LifecycleError(result.status(), *model.engine));
  return JsonResponse(Json{{"status", done},
                           {"level", result->level},
                           {"already_asleep", result->already_asleep},
                           {"freed_bytes", ToJson(result->report.freed_bytes())},
                           {"tag_states", TagStatesJson(result->report)},
                           {"ranks", RanksJson(result->report)},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

HttpResponse SleepResponse(const ServedModel& model, const LifecycleParameters& parameters) {
  SleepRequest request;
  if (const auto levels = parameters.Values("level"); !levels.empty()) {
    if (!absl::SimpleAtoi(levels.back(), &request.level)) request.level = -1;
    if (const std::optional<ApiError> error = CheckSleepLevel(request.level)) return ErrorResponse(*error);
  }
  if (const auto error = parameters.ReadMode(&request.mode)) return ErrorResponse(*error);
  request.tags = parameters.Tags();
  if (const auto error = CheckSleepTags(request.level, request.tags)) return ErrorResponse(*error);
  if (const auto error = parameters.ReadBool("force", &request.force)) return ErrorResponse(*error);
  return Slept(model, request, "sleep", "sleeping");
}

// The memory of the KV cache alone: the weights stay, so that they can be replaced meanwhile.
HttpResponse ReleaseKvCacheResponse(const ServedModel& model, const LifecycleParameters& parameters) {
  SleepRequest request = {.tags = {kKvCacheTag}};
  if (const auto error = parameters.ReadMode(&request.mode)) return ErrorResponse(*error);
  return Slept(model, request, "release_kv_cache_memory", "kv_cache_released");
}

HttpResponse Woken(const ServedModel& model, const std::vector<std::string>& tags,
                   std::optional<bool> load_weights) {
  const absl::StatusOr<WakeUpResult> result = WakeUpEngine(model, tags, load_weights);
  if (!result.ok()) return ErrorResponse(LifecycleError(result.status(), *model.engine));
  // Both names: older servers of vLLM say `tags`.
  const Json named = tags.empty() ? Json(nullptr) : Json(tags);
  return JsonResponse(Json{{"status", result->awake ? "awake" : "sleeping"},
                           {"tags", named},
                           {"tags_woken", named},
                           {"already_resident", result->already_resident},
                           {"mapped_bytes", ToJson(result->report.mapped_bytes())},
                           {"tag_states", TagStatesJson(result->report)},
                           {"ranks", RanksJson(result->report)},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

HttpResponse WakeUpResponse(const ServedModel& model, const LifecycleParameters& parameters) {
  const std::vector<std::string> tags = parameters.Tags();
  if (const std::optional<ApiError> error = CheckWakeUpTags(tags)) return ErrorResponse(*error);
  std::optional<bool> load_weights;
  if (!parameters.Values("load_weights").empty()) {
    if (const auto error = parameters.ReadBool("load_weights", &load_weights.emplace()))
      return ErrorResponse(*error);
  }
  return Woken(model, tags, load_weights);
}

HttpResponse PauseResponse(Engine* engine, const LifecycleParameters& parameters) {
  PauseRequest request;
  bool waits = false;  // vLLM's older word for the mode
  if (const auto error = parameters.ReadBool("wait_for_inflight_requests", &waits))
    return ErrorResponse(*error);
  if (waits) request.mode = SleepMode::kWait;
  if (const auto error = parameters.ReadMode(&request.mode)) return ErrorResponse(*error);
  if (const auto error = parameters.ReadBool("clear_cache", &request.clear_cache))
    return ErrorResponse(*error);
  const absl::StatusOr<absl::Duration> paused = PauseEngine(engine, request);
  if (!paused.ok()) return ErrorResponse(LifecycleError(paused.status(), *engine));
  return JsonResponse(Json{{"status", "paused"}, {"seconds", absl::ToDoubleSeconds(*paused)}});
}

HttpResponse ResetPrefixCacheResponse(Engine* engine, const LifecycleParameters& parameters) {
  bool preempt_running = false;
  bool external = false;  // there is no other tier: nothing is left there
  if (const auto error = parameters.ReadBool("reset_running_requests", &preempt_running))
    return ErrorResponse(*error);
  if (const auto error = parameters.ReadBool("reset_external", &external)) return ErrorResponse(*error);
  const absl::Status status = engine->ResetPrefixCache(preempt_running);
  if (!status.ok()) return ErrorResponse(LifecycleError(status, *engine));
  return JsonResponse(Json{{"success", true}});
}

// Reads {"request_ids": [...]}; without the field, all requests.
HttpResponse AbortResponse(const ServedModel& model, absl::string_view body) {
  const absl::StatusOr<nlohmann::json> object = ParseJsonObject(body, JsonLimits{.max_values = 100'000});
  if (!object.ok()) return ErrorResponse(BadRequest("body", object.status().message()));
  for (const auto& [name, value] : object->items()) {
    if (name != "request_ids")
      return ErrorResponse(BadRequest(CleanMessage(name), "the only field is request_ids"));
  }
  std::optional<std::vector<std::string>> ids;
  if (const nlohmann::json value = object->value("request_ids", nlohmann::json()); !value.is_null()) {
    const bool are_words = value.is_array() && std::all_of(value.begin(), value.end(),
                                                           [](const auto& id) { return id.is_string(); });
    if (!are_words) return ErrorResponse(BadRequest("request_ids", "request_ids must be a list of strings"));
    ids = value.get<std::vector<std::string>>();
  }
  return JsonResponse(Json{{"status", "aborted"}, {"aborted", AbortRequests(model, ids)}});
}

HttpResponse ReviveResponse(Engine* engine) {
  const absl::StatusOr<absl::Duration> revived = ReviveEngine(engine);
  if (!revived.ok()) return ErrorResponse(LifecycleError(revived.status(), *engine));
  return JsonResponse(Json{{"status", "revived"},
                           {"state", EngineStateName(engine->state())},
                           {"seconds", absl::ToDoubleSeconds(*revived)}});
}

HttpResponse RollResponse(Engine* engine, const LifecycleParameters& parameters) {
  double grace = absl::ToDoubleSeconds(kDefaultRollGrace);
  if (const auto graces = parameters.Values("grace_s"); !graces.empty()) {
    if (!absl::SimpleAtod(graces.back(), &grace)) grace = -1;
    if (const std::optional<ApiError> error = CheckRollGrace(grace)) return ErrorResponse(*error);
  }
  const absl::StatusOr<RollResult> result = RollEngine(engine, absl::Seconds(grace));
  if (!result.ok()) return ErrorResponse(LifecycleError(result.status(), *engine));
  return JsonResponse(Json{{"status", "rolled"},
                           {"num_replicas", result->num_replicas},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

HttpResponse ReloadResponse(Engine* engine, const LifecycleParameters& parameters) {
  WeightsRequest request;
  if (const auto paths = parameters.Values("path"); !paths.empty()) request.path = paths.back();
  if (const auto error = parameters.ReadMode(&request.mode)) return ErrorResponse(*error);
  if (const auto versions = parameters.Values("weight_version"); !versions.empty()) {
    if (!absl::SimpleAtoi(versions.back(), &request.version)) request.version = 0;
    if (const auto error = CheckWeightsVersion(request.version)) return ErrorResponse(*error);
  }
  if (const auto labels = parameters.Values("weight_label"); !labels.empty()) {
    request.label = labels.back();
    if (const auto error = CheckWeightLabel("weight_label", request.label)) return ErrorResponse(*error);
  }
  const absl::StatusOr<WeightsResult> result = ReloadEngine(engine, request);
  if (!result.ok()) return ErrorResponse(LifecycleError(result.status(), *engine));
  return JsonResponse(Json{{"status", "reloaded"},
                           {"weight_version", result->change.version},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

std::string LastOf(const LifecycleParameters& parameters, const std::string& name) {
  const std::vector<std::string>& values = parameters.Values(name);
  return values.empty() ? "" : values.back();
}

HttpResponse LoadAdapterResponse(const ModelTable& models, const ServedModel& model,
                                 const LifecycleParameters& parameters) {
  AdapterLoad load = {.name = LastOf(parameters, "lora_name"), .path = LastOf(parameters, "lora_path")};
  if (const auto error = parameters.ReadBool("load_inplace", &load.in_place)) return ErrorResponse(*error);
  const absl::StatusOr<absl::Duration> loaded = LoadAdapter(models, model, load);
  if (!loaded.ok()) return ErrorResponse(AdapterError(loaded.status(), *model.engine));
  return JsonResponse(
      Json{{"status", "loaded"}, {"lora_name", load.name}, {"seconds", absl::ToDoubleSeconds(*loaded)}});
}

HttpResponse UnloadAdapterResponse(const ServedModel& model, const LifecycleParameters& parameters) {
  const std::string name = LastOf(parameters, "lora_name");
  const absl::StatusOr<absl::Duration> unloaded = UnloadAdapter(model, name);
  if (!unloaded.ok()) return ErrorResponse(AdapterError(unloaded.status(), *model.engine));
  return JsonResponse(
      Json{{"status", "unloaded"}, {"lora_name", name}, {"seconds", absl::ToDoubleSeconds(*unloaded)}});
}

// Names the weights that there are. Their number stays, and so do the names of tokens that have come.
HttpResponse UpdateVersionResponse(const ServedModel& model, const LifecycleParameters& parameters) {
  const std::vector<std::string>& labels = parameters.Values("new_version");
  const std::string label = labels.empty() ? "" : labels.back();
  if (const auto error = CheckWeightLabel("new_version", label)) return ErrorResponse(*error);
  const int64_t version = model.engine->Stats().weights_version;
  if (version == 0) {
    return ErrorResponse({409,
                          "there are no weights that could have a name: a reload or an update comes first",
                          "new_version"});
  }
  model.weight_labels->Set(version, label);
  return JsonResponse(Json{{"success", true}, {"new_version", label}});
}

}  // namespace

HttpResponse AnswerLifecycle(const RouteSpec& spec, const ModelTable& models, const ServedModel& model,
                             const LifecycleParameters& parameters, absl::string_view body) {
  Engine* const engine = model.engine.get();
  switch (spec.route) {
    case Route::kSleep:
      return SleepResponse(model, parameters);
    case Route::kWakeUp:
      return WakeUpResponse(model, parameters);
    case Route::kPause:
      return PauseResponse(engine, parameters);
    case Route::kResume: {
      const absl::Status status = engine->Resume();
      return status.ok() ? JsonResponse(Json{{"status", "resumed"}})
                         : ErrorResponse(LifecycleError(status, *engine));
    }
    case Route::kResetPrefixCache:
      return ResetPrefixCacheResponse(engine, parameters);
    case Route::kAbortRequests:
      return AbortResponse(model, body);
    case Route::kCollectiveRpc:
      return AnswerCollectiveRpc(model, body);
    case Route::kRevive:
      return ReviveResponse(engine);
    case Route::kAbortCall: {
      const absl::Status status = engine->AbortCall();
      return status.ok() ? JsonResponse(Json{{"status", "ended"}})
                         : ErrorResponse(LifecycleError(status, *engine));
    }
    case Route::kRoll:
      return RollResponse(engine, parameters);
    case Route::kLoadAdapter:
      return LoadAdapterResponse(models, model, parameters);
    case Route::kUnloadAdapter:
      return UnloadAdapterResponse(model, parameters);
    case Route::kReloadWeights:
      return ReloadResponse(engine, parameters);
    case Route::kUpdateWeightVersion:
      return UpdateVersionResponse(model, parameters);
    case Route::kWeightChecker:
      return CheckWeights(model, parameters, body);
    case Route::kReleaseKvCache:
      return ReleaseKvCacheResponse(model, parameters);
    case Route::kResumeKvCache:
      return Woken(model, {kKvCacheTag}, std::nullopt);
    case Route::kTrace:
      return TraceResponse(model, parameters);
    default:
      return ErrorResponse({500, "internal error", ""});
  }
}

}  // namespace somnus
