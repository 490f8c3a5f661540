#include "coordinator/traces/span.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/version.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStatusError = 2;

Json ValueJson(const std::string& value) { return {{"stringValue", value}}; }
Json ValueJson(int64_t value) { return {{"intValue", absl::StrCat(value)}}; }
Json ValueJson(double value) { return {{"doubleValue", value}}; }
Json ValueJson(const std::vector<std::string>& values) {
  Json list = Json::array();
  for (const std::string& value : values) list.push_back(ValueJson(value));
  return {{"arrayValue", {{"values", std::move(list)}}}};
}

Json AttributeJson(const std::string& key, const Span::Value& value) {
  return {{"key", key}, {"value", std::visit([](const auto& of_type) { return ValueJson(of_type); }, value)}};
}

Json SpanJson(const Span& span) {
  Json json = {{"traceId", span.trace_id}, {"spanId", span.span_id}};
  if (!span.state.empty()) json["traceState"] = span.state;
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = absl::StrCat(absl::ToUnixNanos(span.begin));
  json["endTimeUnixNano"] = absl::StrCat(absl::ToUnixNanos(span.end));
  Json attributes = Json::array();
  for (const auto& [key, value] : span.attributes) attributes.push_back(AttributeJson(key, value));
  json["attributes"] = std::move(attributes);
  if (span.failed) json["status"] = {{"code", kStatusError}};
  return json;
}

}  // namespace

std::string OtlpJson(const std::string& service_name, const std::vector<Span>& spans) {
  Json list = Json::array();
  for (const Span& span : spans) list.push_back(SpanJson(span));
  const Json scope = {{"name", "somnus"}, {"version", kVersion}};
  const Json resource = {
      {"attributes", Json::array({AttributeJson("service.name", service_name),
                                  AttributeJson("service.version", std::string(kVersion))})}};
  Json of_scope = {{"scope", scope}, {"spans", std::move(list)}};
  Json of_resource = {{"resource", resource}, {"scopeSpans", Json::array({std::move(of_scope)})}};
  const Json request = {{"resourceSpans", Json::array({std::move(of_resource)})}};
  return request.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace somnus
