#include "coordinator/api/lifecycle_routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/api/collective_rpc.h"
#include "coordinator/api/json_body.h"
#include "coordinator/api/lifecycle_calls.h"
#include "coordinator/api/query_string.h"
#include "coordinator/api/report_json.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

// Returns an error for a parameter or a body that the route does not take; nullopt: there is none.
std::optional<ApiError> CheckParameters(const RouteSpec& spec, absl::string_view query,
                                        absl::string_view body) {
  std::vector<absl::string_view> known;
  if (spec.route == Route::kSleep) known = {"level", "mode", "tags"};
  if (spec.route == Route::kWakeUp) known = {"tags", "load_weights"};
  if (spec.route == Route::kPause) known = {"mode", "clear_cache", "wait_for_inflight_requests"};
  if (spec.route == Route::kResetPrefixCache) known = {"reset_running_requests", "reset_external"};
  if (spec.route == Route::kRoll) known = {"grace_s"};
  if (spec.route == Route::kReloadWeights) known = {"path", "mode", "weight_version"};
  const std::string takes =
      known.empty() ? "no parameters" : absl::StrCat(absl::StrJoin(known, " and "), " in the query");
  for (const std::string& name : QueryNames(query)) {
    // Every route takes the model, which has been found by now.
    if (name == "model" || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string shown = CleanMessage(name);
    return BadRequest(shown,
                      absl::StrCat(shown, " is not a parameter of ", spec.path, ", which takes ", takes));
  }
  if (absl::StripAsciiWhitespace(body).empty()) return std::nullopt;
  const absl::StatusOr<nlohmann::json> object = ParseJsonObject(body, JsonLimits{.max_values = 1000});
  if (object.ok() && object->empty()) return std::nullopt;
  const std::string shown = object.ok() ? CleanMessage(object->begin().key()) : "body";
  return BadRequest(
      shown, absl::StrCat(shown, " is not understood: ", spec.path, " reads no body and takes ", takes));
}

// The last mode of the query; nullopt: it has none. An error names another word.
std::optional<ApiError> ReadMode(absl::string_view query, SleepMode* mode) {
  const std::vector<std::string> modes = QueryValues(query, "mode");
  if (modes.empty()) return std::nullopt;
  const std::optional<SleepMode> parsed = ParseSleepMode(modes.back());
  if (!parsed.has_value()) return BadSleepMode();
  *mode = *parsed;
  return std::nullopt;
}

// As vLLM's framework reads truth values.
std::optional<ApiError> ReadBool(absl::string_view query, const char* name, bool* value) {
  const std::vector<std::string> values = QueryValues(query, name);
  if (values.empty()) return std::nullopt;
  const std::string word = absl::AsciiStrToLower(values.back());
  for (const auto& [yes, no] : {std::pair("true", "false"), std::pair("1", "0"), std::pair("yes", "no"),
                                std::pair("on", "off"), std::pair("t", "f"), std::pair("y", "n")}) {
    if (word != yes && word != no) continue;
    *value = word == yes;
    return std::nullopt;
  }
  return BadRequest(name, absl::StrCat(name, " must be true or false"));
}

HttpResponse SleepResponse(Engine* engine, absl::string_view query) {
  SleepRequest request;
  if (const auto levels = QueryValues(query, "level"); !levels.empty()) {
    if (!absl::SimpleAtoi(levels.back(), &request.level)) request.level = -1;
    if (const std::optional<ApiError> error = CheckSleepLevel(request.level)) return ErrorResponse(*error);
  }
  if (const auto error = ReadMode(query, &request.mode)) return ErrorResponse(*error);
  request.tags = QueryValues(query, "tags");
  if (const auto error = CheckSleepTags(request.level, request.tags)) return ErrorResponse(*error);
  const absl::StatusOr<SleepResult> result = SleepEngine(engine, request);
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", "sleeping"},
                           {"level", result->level},
                           {"already_asleep", result->already_asleep},
                           {"freed_bytes", ToJson(result->report.freed_bytes())},
                           {"tag_states", TagStatesJson(result->report)},
                           {"ranks", RanksJson(result->report)},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

HttpResponse WakeUpResponse(Engine* engine, absl::string_view query) {
  const std::vector<std::string> tags = QueryValues(query, "tags");
  if (const std::optional<ApiError> error = CheckWakeUpTags(tags)) return ErrorResponse(*error);
  std::optional<bool> load_weights;
  if (!QueryValues(query, "load_weights").empty()) {
    if (const auto error = ReadBool(query, "load_weights", &load_weights.emplace()))
      return ErrorResponse(*error);
  }
  const absl::StatusOr<WakeUpResult> result = WakeUpEngine(engine, tags, load_weights);
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", result->awake ? "awake" : "sleeping"},
                           {"tags", tags.empty() ? Json(nullptr) : Json(tags)},
                           {"already_resident", result->already_resident},
                           {"mapped_bytes", ToJson(result->report.mapped_bytes())},
                           {"tag_states", TagStatesJson(result->report)},
                           {"ranks", RanksJson(result->report)},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

HttpResponse PauseResponse(Engine* engine, absl::string_view query) {
  PauseRequest request;
  bool waits = false;  // vLLM's older word for the mode
  if (const auto error = ReadBool(query, "wait_for_inflight_requests", &waits)) return ErrorResponse(*error);
  if (waits) request.mode = SleepMode::kWait;
  if (const auto error = ReadMode(query, &request.mode)) return ErrorResponse(*error);
  if (const auto error = ReadBool(query, "clear_cache", &request.clear_cache)) return ErrorResponse(*error);
  const absl::StatusOr<absl::Duration> paused = PauseEngine(engine, request);
  if (!paused.ok()) return ErrorResponse(FromStatus(paused.status()));
  return JsonResponse(Json{{"status", "paused"}, {"seconds", absl::ToDoubleSeconds(*paused)}});
}

HttpResponse ResetPrefixCacheResponse(Engine* engine, absl::string_view query) {
  bool preempt_running = false;
  bool external = false;  // there is no other tier: nothing is left there
  if (const auto error = ReadBool(query, "reset_running_requests", &preempt_running))
    return ErrorResponse(*error);
  if (const auto error = ReadBool(query, "reset_external", &external)) return ErrorResponse(*error);
  const absl::Status status = engine->ResetPrefixCache(preempt_running);
  if (!status.ok()) return ErrorResponse(FromStatus(status));
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

HttpResponse RollResponse(Engine* engine, absl::string_view query) {
  double grace = absl::ToDoubleSeconds(kDefaultRollGrace);
  if (const auto graces = QueryValues(query, "grace_s"); !graces.empty()) {
    if (!absl::SimpleAtod(graces.back(), &grace)) grace = -1;
    if (const std::optional<ApiError> error = CheckRollGrace(grace)) return ErrorResponse(*error);
  }
  const absl::StatusOr<RollResult> result = RollEngine(engine, absl::Seconds(grace));
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", "rolled"},
                           {"num_replicas", result->num_replicas},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

HttpResponse ReloadResponse(Engine* engine, absl::string_view query) {
  WeightsRequest request;
  if (const auto paths = QueryValues(query, "path"); !paths.empty()) request.path = paths.back();
  if (const auto error = ReadMode(query, &request.mode)) return ErrorResponse(*error);
  if (const auto versions = QueryValues(query, "weight_version"); !versions.empty()) {
    if (!absl::SimpleAtoi(versions.back(), &request.version)) request.version = 0;
    if (const auto error = CheckWeightsVersion(request.version)) return ErrorResponse(*error);
  }
  const absl::StatusOr<WeightsResult> result = ReloadEngine(engine, request);
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", "reloaded"},
                           {"weight_version", result->change.version},
                           {"seconds", absl::ToDoubleSeconds(result->duration)}});
}

}  // namespace

HttpResponse AnswerLifecycle(const RouteSpec& spec, const ServedModel& model, absl::string_view query,
                             absl::string_view body) {
  const bool reads_body = spec.route == Route::kAbortRequests || spec.route == Route::kCollectiveRpc;
  if (const auto error = CheckParameters(spec, query, reads_body ? "" : body)) return ErrorResponse(*error);
  Engine* const engine = model.engine.get();
  switch (spec.route) {
    case Route::kSleep:
      return SleepResponse(engine, query);
    case Route::kWakeUp:
      return WakeUpResponse(engine, query);
    case Route::kPause:
      return PauseResponse(engine, query);
    case Route::kResume: {
      const absl::Status status = engine->Resume();
      return status.ok() ? JsonResponse(Json{{"status", "resumed"}}) : ErrorResponse(FromStatus(status));
    }
    case Route::kResetPrefixCache:
      return ResetPrefixCacheResponse(engine, query);
    case Route::kAbortRequests:
      return AbortResponse(model, body);
    case Route::kCollectiveRpc:
      return AnswerCollectiveRpc(model, body);
    case Route::kRoll:
      return RollResponse(engine, query);
    case Route::kReloadWeights:
      return ReloadResponse(engine, query);
    default:
      return ErrorResponse({500, "internal error", ""});
  }
}

}  // namespace somnus
