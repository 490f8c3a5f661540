#include "coordinator/api/lifecycle_routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/api/json_body.h"
#include "coordinator/api/lifecycle_calls.h"
#include "coordinator/api/query_string.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const TagBytes& bytes) {
  Json object = Json::object();
  for (const auto& [tag, count] : bytes) object[tag] = count;
  return object;
}

// Returns an error for a parameter or a body that the route does not take; nullopt: there is none.
std::optional<ApiError> CheckParameters(const RouteSpec& spec, absl::string_view query,
                                        absl::string_view body) {
  std::vector<absl::string_view> known;
  if (spec.route == Route::kSleep) known = {"level", "mode"};
  if (spec.route == Route::kWakeUp) known = {"tags"};
  if (spec.route == Route::kRoll) known = {"grace_s"};
  const std::string takes =
      known.empty() ? "no parameters" : absl::StrCat(absl::StrJoin(known, " and "), " in the query");
  for (const std::string& name : QueryNames(query)) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
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

HttpResponse SleepResponse(Engine* engine, absl::string_view query) {
  int level = 1;
  if (const auto levels = QueryValues(query, "level"); !levels.empty()) {
    if (!absl::SimpleAtoi(levels.back(), &level)) level = -1;
    if (const std::optional<ApiError> error = CheckSleepLevel(level)) return ErrorResponse(*error);
  }
  if (const auto modes = QueryValues(query, "mode"); !modes.empty() && modes.back() != "keep") {
    const bool known = modes.back() == "abort" || modes.back() == "wait";
    return ErrorResponse(BadRequest(
        "mode", known ? "only mode keep is supported: requests go on after waking" : "mode must be keep"));
  }
  const absl::StatusOr<SleepResult> result = SleepEngine(engine, {.level = level});
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", "sleeping"},
                           {"level", result->level},
                           {"already_asleep", result->already_asleep},
                           {"freed_bytes", ToJson(result->report.freed_bytes())}});
}

HttpResponse WakeUpResponse(Engine* engine, absl::string_view query) {
  const std::vector<std::string> tags = QueryValues(query, "tags");
  if (const std::optional<ApiError> error = CheckWakeUpTags(tags)) return ErrorResponse(*error);
  const absl::StatusOr<WakeUpResult> result = WakeUpEngine(engine, tags);
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", result->awake ? "awake" : "sleeping"},
                           {"tags", tags.empty() ? Json(nullptr) : Json(tags)},
                           {"already_resident", result->already_resident},
                           {"mapped_bytes", ToJson(result->report.mapped_bytes())}});
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

}  // namespace

HttpResponse AnswerLifecycle(const RouteSpec& spec, Engine* engine, absl::string_view query,
                             absl::string_view body) {
  if (const auto error = CheckParameters(spec, query, body)) return ErrorResponse(*error);
  if (spec.route == Route::kSleep) return SleepResponse(engine, query);
  if (spec.route == Route::kWakeUp) return WakeUpResponse(engine, query);
  if (spec.route == Route::kRoll) return RollResponse(engine, query);
  const absl::Status status = engine->ResetPrefixCache();
  if (!status.ok()) return ErrorResponse(FromStatus(status));
  return JsonResponse(Json{{"success", true}});
}

}  // namespace somnus
