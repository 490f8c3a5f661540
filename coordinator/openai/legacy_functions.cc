#include "coordinator/openai/legacy_functions.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/http/json_body.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

bool IsGiven(const Json& body, const char* name) {
  const auto it = body.find(name);
  return it != body.end() && !it->is_null();
}

// The id of a call in the history. The first form has none: a result belongs to the call before.
std::string CallId(size_t message) { return absl::StrCat("call_", message); }

// The tools of `functions`; null after an error.
OrderedJson ToolsOf(OrderedJson functions, ApiError* error) {
  if (!functions.is_array() || functions.empty()) {
    *error = BadRequest("functions", "functions must be a list that is not empty");
    return nullptr;
  }
  OrderedJson tools = OrderedJson::array();
  for (OrderedJson& function : functions) {
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      *error = BadRequest("functions", "every function must be {\"name\": ..., \"parameters\": ...}");
      return nullptr;
    }
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

// The tool_choice of `function_call`; null after an error.
Json ChoiceOf(const Json& call, ApiError* error) {
  if (call == "none" || call == "auto") return call;
  if (call.is_object() && call.contains("name") && call["name"].is_string())
    return {{"type", "function"}, {"function", {{"name", call["name"]}}}};
  *error = BadRequest("function_call", R"(function_call must be "none", "auto" or {"name": ...})");
  return nullptr;
}

// Rewrites the messages of calls and results. Messages that the chat route refuses are left as they are.
void RewriteMessages(OrderedJson* messages) {
  if (!messages->is_array()) return;
  std::string last_call;
  for (size_t i = 0; i < messages->size(); ++i) {
    OrderedJson& message = (*messages)[i];
    if (!message.is_object()) continue;
    if (const auto call = message.find("function_call"); call != message.end()) {
      if (call->is_object()) {
        last_call = CallId(i);
        message["tool_calls"] = {{{"id", last_call}, {"type", "function"}, {"function", std::move(*call)}}};
      }
      message.erase("function_call");
    }
    const auto role = message.find("role");
    if (role == message.end() || *role != "function" || last_call.empty()) continue;
    *role = "tool";
    message["tool_call_id"] = last_call;
  }
}

}  // namespace

bool HasLegacyFunctions(const Json& body) {
  return IsGiven(body, "functions") || IsGiven(body, "function_call");
}

BodyOrError LegacyFunctionsToTools(const Json& body, absl::string_view text, size_t max_keys) {
  for (const char* name : {"tools", "tool_choice"}) {
    if (IsGiven(body, name))
      return BadRequest("functions", absl::StrCat("functions and ", name, " exclude each other"));
  }
  if (!IsGiven(body, "functions")) return BadRequest("function_call", "function_call needs functions");
  OrderedJson in_order = ParseInOrder(text, {"functions", "messages"}, max_keys);
  ApiError error;
  const OrderedJson tools = ToolsOf(std::move(in_order["functions"]), &error);
  if (tools.is_null()) return error;
  Json rest = body;
  if (IsGiven(body, "function_call")) {
    rest["tool_choice"] = ChoiceOf(body["function_call"], &error);
    if (rest["tool_choice"].is_null()) return error;
  }
  rest["parallel_tool_calls"] = false;
  for (const char* name : {"functions", "function_call", "messages"}) rest.erase(name);
  const auto dump = [](const auto& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string result = absl::StrCat("{\"tools\":", dump(tools));
  if (body.contains("messages")) {
    RewriteMessages(&in_order["messages"]);
    absl::StrAppend(&result, ",\"messages\":", dump(in_order["messages"]));
  }
  return absl::StrCat(result, ",", absl::StripPrefix(dump(rest), "{"));
}

ApiError InLegacyNames(ApiError error) {
  if (error.param == "tools") error.param = "functions";
  if (error.param == "tool_choice") error.param = "function_call";
  // "/tools/0/function/parameters/..." is "/functions/0/parameters/..." here.
  constexpr absl::string_view kTools = "/tools/", kFunction = "/function/";
  const size_t function = absl::string_view(error.param).find(kFunction);
  if (!absl::StartsWith(error.param, kTools) || function == std::string::npos) return error;
  error.param.replace(function, kFunction.size(), "/");
  error.param.replace(0, kTools.size(), "/functions/");
  return error;
}

}  // namespace somnus
