#include "coordinator/operators/lifecycle_parameters.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/http/json_body.h"
#include "coordinator/http/query_string.h"

namespace somnus {
namespace {

std::vector<std::string> KnownNames(Route route) {
  switch (route) {
    case Route::kSleep:
      return {"level", "mode", "tags", "force"};
    case Route::kWakeUp:
      return {"tags", "load_weights"};
    case Route::kPause:
      return {"mode", "clear_cache", "wait_for_inflight_requests"};
    case Route::kResetPrefixCache:
      return {"reset_running_requests", "reset_external"};
    case Route::kRoll:
      return {"grace_s"};
    case Route::kLoadAdapter:
      return {"lora_name", "lora_path", "load_inplace", "lora_int_id"};
    case Route::kUnloadAdapter:
      return {"lora_name", "lora_int_id"};
    case Route::kReloadWeights:
      return {"path", "mode", "weight_version", "weight_label"};
    case Route::kUpdateWeightVersion:
      return {"new_version"};
    case Route::kWeightChecker:
      return {"action", "tensors"};
    case Route::kReleaseKvCache:
      return {"mode"};
    case Route::kTrace:
      return {"seconds"};
    case Route::kKvEvents:
      return {"from_seq"};
    case Route::kGetWorldSize:
      return {"include_dp"};
    default:
      return {};
  }
}

bool ReadsBody(Route route) { return route == Route::kAbortRequests || route == Route::kCollectiveRpc; }

bool IsText(const nlohmann::json& value) {
  return value.is_string() || value.is_number() || value.is_boolean();
}
std::string Text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Adds the values of a field of a body.
std::optional<ApiError> AddField(const std::string& name, const nlohmann::json& value,
                                 LifecycleParameters* parameters) {
  if (value.is_null()) return std::nullopt;
  const bool is_list = name == "tags" && value.is_array() && std::all_of(value.begin(), value.end(), &IsText);
  if (!is_list && !IsText(value)) {
    return BadRequest(name, absl::StrCat(name, name == "tags" ? " must be a list of strings"
                                                              : " must be a string, a number or a boolean"));
  }
  if (!is_list) parameters->Add(name, Text(value));
  for (size_t i = 0; is_list && i < value.size(); ++i) parameters->Add(name, Text(value[i]));
  return std::nullopt;
}

}  // namespace

const std::vector<std::string>& LifecycleParameters::Values(const std::string& name) const {
  static const auto* const none = new std::vector<std::string>();
  const auto found = values_.find(name);
  return found == values_.end() ? *none : found->second;
}

std::vector<std::string> LifecycleParameters::Tags() const {
  std::vector<std::string> tags;
  for (const std::string& value : Values("tags")) {
    for (const absl::string_view tag : absl::StrSplit(value, ','))
      tags.emplace_back(absl::StripAsciiWhitespace(tag));
  }
  return tags;
}

std::optional<ApiError> LifecycleParameters::ReadMode(SleepMode* out) const {
  const std::vector<std::string>& modes = Values("mode");
  if (modes.empty()) return std::nullopt;
  const std::optional<SleepMode> parsed = ParseSleepMode(modes.back());
  if (!parsed.has_value()) return BadSleepMode();
  *out = *parsed;
  return std::nullopt;
}

std::optional<ApiError> LifecycleParameters::ReadBool(const std::string& name, bool* out) const {
  const std::vector<std::string>& values = Values(name);
  if (values.empty()) return std::nullopt;
  const std::string word = absl::AsciiStrToLower(values.back());
  for (const auto& [yes, no] : {std::pair("true", "false"), std::pair("1", "0"), std::pair("yes", "no"),
                                std::pair("on", "off"), std::pair("t", "f"), std::pair("y", "n")}) {
    if (word != yes && word != no) continue;
    *out = word == yes;
    return std::nullopt;
  }
  return BadRequest(name, absl::StrCat(name, " must be true or false"));
}

std::variant<LifecycleParameters, ApiError> ReadParameters(const RouteSpec& spec, absl::string_view query,
                                                           absl::string_view body) {
  const std::vector<std::string> known = KnownNames(spec.route);
  // Every route takes the model.
  const auto is_known = [&](const std::string& name) {
    return name == "model" || std::find(known.begin(), known.end(), name) != known.end();
  };
  LifecycleParameters parameters;
  for (const std::string& name : QueryNames(query)) {
    if (!is_known(name)) {
      const std::string shown = CleanMessage(name);
      const std::string takes = known.empty() ? "no parameters" : absl::StrJoin(known, " and ");
      return BadRequest(shown,
                        absl::StrCat(shown, " is not a parameter of ", spec.path, ", which takes ", takes));
    }
    if (parameters.Has(name)) continue;
    for (std::string& value : QueryValues(query, name)) parameters.Add(name, std::move(value));
  }
  if (ReadsBody(spec.route)) return parameters;
  const absl::StatusOr<nlohmann::json> object = ParseJsonObject(body, JsonLimits());
  if (!object.ok()) return parameters;
  const LifecycleParameters of_query = parameters;
  for (const auto& [name, value] : object->items()) {
    if (!is_known(name) || of_query.Has(name)) continue;
    if (auto error = AddField(name, value, &parameters)) return *std::move(error);
  }
  return parameters;
}

}  // namespace somnus
