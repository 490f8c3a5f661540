#include "text/tools/forced_calls.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ForcedChoice::Kind;

constexpr char kIndex[] = "INDEX";

Json ConstString(absl::string_view value) {
  return {{"type", "const_string"}, {"value", std::string(value)}};
}

Json Sequence(std::vector<Json> elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

// A function has the parameters that it names: where its schema says nothing of further members there are
// none, which a weak model would make up.
Json NamedParameters(const Json& schema) {
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !properties->is_object()) return schema;
  for (const char* key : {"additionalProperties", "unevaluatedProperties", "patternProperties",
                          "propertyNames", "minProperties", "allOf", "anyOf", "oneOf", "not", "if", "$ref",
                          "dependencies", "dependentRequired", "dependentSchemas"}) {
    if (schema.contains(key)) return schema;
  }
  if (const auto required = schema.find("required"); required != schema.end() && required->is_array()) {
    for (const Json& name : *required) {
      if (!name.is_string() || !properties->contains(name.get_ref<const std::string&>())) return schema;
    }
  }
  Json closed = schema;
  closed["additionalProperties"] = false;
  return closed;
}

// Arguments are an object, whether or not the tool's schema says so.
Json AsObject(Json schema) {
  const auto type = schema.find("type");
  const bool has_object = type == schema.end() || (type->is_array() && std::find(type->begin(), type->end(),
                                                                                 "object") != type->end());
  if (has_object) schema["type"] = "object";
  return schema;
}

// With kAuto, tools that are not strict take any object.
Json SchemaOf(const ToolSpec& tool, const ForcedChoice& choice) {
  if (choice.kind == Kind::kAuto && !tool.strict) return {{"type", "object"}};
  if (!tool.parameters.is_object())
    return {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  return AsObject(NamedParameters(tool.parameters));
}

// The tag of one tool's call.
Json CallTag(const ForcedSyntax& syntax, const ToolSpec& tool, const ForcedChoice& choice) {
  std::string begin = absl::StrReplaceAll(syntax.begin, {{"NAME", tool.name}});
  Json content = {{"type", "json_schema"}, {"json_schema", SchemaOf(tool, choice)}};
  if (syntax.style != "json") content["style"] = std::string(syntax.style);
  // Kimi's ids count calls; the grammar takes any number, since only the model knows how many came before.
  if (const size_t at = begin.find(kIndex); at != std::string::npos) {
    content = Sequence({{{"type", "regex"}, {"pattern", "[0-9]{1,4}"}},
                        ConstString(begin.substr(at + sizeof(kIndex) - 1)),
                        content});
    begin.resize(at);
  }
  return {{"type", "tag"}, {"begin", begin}, {"content", content}, {"end", std::string(syntax.end)}};
}

Json CallList(const ForcedSyntax& syntax, Json tags, bool is_single) {
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", std::string(syntax.separator)},
          {"at_least_one", true},
          {"stop_after_first", is_single}};
}

// Free text up to the trigger; from there on calls alone, in the section's markers where the format has any.
Json FreeText(const ForcedSyntax& syntax, Json tags, bool is_single) {
  if (!syntax.open.empty()) {
    tags = Json::array({{{"type", "tag"},
                         {"begin", std::string(syntax.open)},
                         {"content", CallList(syntax, std::move(tags), is_single)},
                         {"end", std::string(syntax.close)}}});
  }
  return {{"type", "triggered_tags"},
          {"triggers", Json::array({std::string(syntax.trigger)})},
          {"tags", std::move(tags)},
          {"at_least_one", false},
          {"stop_after_first", is_single}};
}

absl::Status CheckChoice(const ToolFormat& format, const std::vector<ToolSpec>& tools,
                         const ForcedChoice& choice) {
  if (tools.empty()) return absl::InvalidArgumentError("tools: a forced tool_choice needs at least one tool");
  if (format.forced.begin.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("no grammar expresses the arguments of tool calls in the format \"", format.name, "\""));
  }
  if (choice.kind != Kind::kNamed) return absl::OkStatus();
  for (const ToolSpec& tool : tools) {
    if (tool.name == choice.name) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tool_choice.function.name: no tool has the name \"", choice.name, "\""));
}

}  // namespace

absl::StatusOr<Json> ForcedCallsTag(const ToolFormat& format, const std::vector<ToolSpec>& tools,
                                    const ForcedChoice& choice) {
  RETURN_IF_ERROR(CheckChoice(format, tools, choice));
  const ForcedSyntax& syntax = format.forced;
  Json tags = Json::array();
  for (const ToolSpec& tool : tools) {
    if (choice.kind == Kind::kNamed && tool.name != choice.name) continue;
    tags.push_back(CallTag(syntax, tool, choice));
  }
  const bool is_single = choice.kind == Kind::kNamed || !choice.is_parallel;
  Json result;
  if (choice.kind == Kind::kAuto) {
    result = FreeText(syntax, std::move(tags), is_single);
  } else {
    result = CallList(syntax, std::move(tags), is_single);
    if (!syntax.open.empty())
      result = Sequence({ConstString(syntax.open), result, ConstString(syntax.close)});
  }
  return Json{{"type", "structural_tag"}, {"format", std::move(result)}};
}

}  // namespace somnus
