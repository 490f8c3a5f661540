#include "coordinator/operators/collective_rpc.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/http/json_body.h"
#include "coordinator/operators/lifecycle_calls.h"
#include "coordinator/operators/status_json.h"
#include "proto/control.pb.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

struct Method {
  const char* name;
  std::vector<std::string> parameters;  // in the order of positional arguments
};

const std::vector<Method>& Methods() {
  static const auto* const methods = new std::vector<Method>{
      {"get_status", {}},
      // weights_path is vLLM's name of path
      {"reload_weights", {"path", "mode", "weight_version", "weights_path", "weight_label"}},
      {"reset_prefix_cache", {}},
      {"sleep", {"level", "mode", "tags", "force"}},
      {"wake_up", {"tags"}}};
  return *methods;
}

std::string MethodNames() {
  return absl::StrJoin(Methods(), ", ",
                       [](std::string* out, const Method& method) { absl::StrAppend(out, method.name); });
}

// Reads the arguments by name. Returns the fault of the arguments; nullopt: none.
std::optional<ApiError> ReadArguments(const Json& body, const Method& method, Json* arguments) {
  *arguments = Json::object();
  const Json args = body.value("args", Json());
  if (!args.is_null() && !args.is_array()) return BadRequest("args", "args must be a list");
  if (args.size() > method.parameters.size())
    return BadRequest("args",
                      absl::StrCat(method.name, " takes at most ", method.parameters.size(), " args"));
  for (size_t i = 0; i < args.size(); ++i) (*arguments)[method.parameters[i]] = args[i];
  const Json kwargs = body.value("kwargs", Json());
  if (!kwargs.is_null() && !kwargs.is_object()) return BadRequest("kwargs", "kwargs must be an object");
  for (const auto& [name, value] : kwargs.items()) {
    if (std::find(method.parameters.begin(), method.parameters.end(), name) == method.parameters.end())
      return BadRequest("kwargs", absl::StrCat(CleanMessage(name), " is not a parameter of ", method.name));
    if (arguments->contains(name)) return BadRequest("kwargs", absl::StrCat(name, " is among args, too"));
    (*arguments)[name] = value;
  }
  return std::nullopt;
}

// vLLM hands arguments on as strings.
std::optional<int64_t> ReadWhole(const Json& value) {
  if (value.is_number_integer()) return value.get<int64_t>();
  int64_t number = 0;
  if (value.is_string() && absl::SimpleAtoi(value.get<std::string>(), &number)) return number;
  return std::nullopt;
}

std::optional<ApiError> ReadTags(const Json& arguments, std::vector<std::string>* tags) {
  const Json value = arguments.value("tags", Json());
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) {
    *tags = absl::StrSplit(value.get<std::string>(), ',');
    return std::nullopt;
  }
  const bool are_words = value.is_array() && std::all_of(value.begin(), value.end(),
                                                         [](const Json& tag) { return tag.is_string(); });
  if (!are_words) return BadRequest("tags", "tags must be a list of strings");
  *tags = value.get<std::vector<std::string>>();
  return std::nullopt;
}

std::optional<ApiError> ReadMode(const Json& arguments, SleepMode* mode) {
  const Json word = arguments.value("mode", Json());
  if (word.is_null()) return std::nullopt;
  const auto parsed = word.is_string() ? ParseSleepMode(word.get<std::string>()) : std::nullopt;
  if (!parsed.has_value()) return BadSleepMode();
  *mode = *parsed;
  return std::nullopt;
}

std::optional<ApiError> ReadReload(const Json& arguments, WeightsRequest* request) {
  for (const char* name : {"path", "weights_path"}) {
    const Json path = arguments.value(name, Json());
    if (path.is_null()) continue;
    if (!path.is_string()) return BadRequest(name, absl::StrCat(name, " must be a string"));
    request->path = path.get<std::string>();
  }
  if (const Json version = arguments.value("weight_version", Json()); !version.is_null()) {
    request->version = ReadWhole(version).value_or(0);
    if (auto error = CheckWeightsVersion(request->version)) return error;
  }
  if (const Json label = arguments.value("weight_label", Json()); !label.is_null()) {
    request->label = label.is_string() ? label.get<std::string>() : "";
    if (auto error = CheckWeightLabel("weight_label", request->label)) return error;
  }
  return ReadMode(arguments, &request->mode);
}

std::optional<ApiError> ReadSleep(const Json& arguments, SleepRequest* request) {
  if (const Json level = arguments.value("level", Json()); !level.is_null()) {
    const std::optional<int64_t> number = ReadWhole(level);
    if (!number.has_value()) return BadRequest("level", "level must be a whole number");
    if (auto error = CheckSleepLevel(*number)) return error;
    request->level = static_cast<int>(*number);
  }
  if (auto error = ReadMode(arguments, &request->mode)) return error;
  if (auto error = ReadTags(arguments, &request->tags)) return error;
  if (const Json force = arguments.value("force", Json()); !force.is_null()) {
    if (!force.is_boolean()) return BadRequest("force", "force must be true or false");
    request->force = force.get<bool>();
  }
  return CheckSleepTags(request->level, request->tags);
}

// Nullopt: the call is done.
std::optional<ApiError> Call(const ServedModel& model, const Method& method, const Json& arguments) {
  const absl::string_view name = method.name;
  absl::Status status;
  if (name == "reset_prefix_cache") status = model.engine->ResetPrefixCache(/*preempt_running=*/false);
  if (name == "sleep") {
    SleepRequest request;
    if (auto error = ReadSleep(arguments, &request)) return error;
    status = SleepEngine(model, request).status();
  }
  if (name == "reload_weights") {
    WeightsRequest request;
    if (auto error = ReadReload(arguments, &request)) return error;
    status = ReloadEngine(model.engine.get(), request).status();
  }
  if (name == "wake_up") {
    std::vector<std::string> tags;
    if (auto error = ReadTags(arguments, &tags)) return error;
    if (auto error = CheckWakeUpTags(tags)) return error;
    status = WakeUpEngine(model, tags, std::nullopt).status();
  }
  if (status.ok()) return std::nullopt;
  return LifecycleError(status, *model.engine);
}

}  // namespace

HttpResponse AnswerCollectiveRpc(const ServedModel& model, absl::string_view body) {
  const absl::StatusOr<Json> parsed = ParseJsonObject(body, JsonLimits{.max_values = 1000});
  if (!parsed.ok()) return ErrorResponse(BadRequest("body", parsed.status().message()));
  const Json name = parsed->value("method", Json());
  if (!name.is_string())
    return ErrorResponse(BadRequest("method", absl::StrCat("method must be one of ", MethodNames())));
  const auto method = std::find_if(Methods().begin(), Methods().end(),
                                   [&](const Method& one) { return name.get<std::string>() == one.name; });
  if (method == Methods().end())
    return ErrorResponse({404, absl::StrCat("There is no such method; there are ", MethodNames()), "method"});
  Json arguments;
  if (const auto error = ReadArguments(*parsed, *method, &arguments)) return ErrorResponse(*error);
  if (const auto error = Call(model, *method, arguments)) return ErrorResponse(*error);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  if (model.rank_status) {
    const bool shows = std::string(method->name) == "get_status";
    for (const v1::RankStatus& rank : model.rank_status())
      results.push_back(shows ? RankStatusJson(rank) : nlohmann::ordered_json(nullptr));
  }
  return JsonResponse({{"results", std::move(results)}});
}

}  // namespace somnus
