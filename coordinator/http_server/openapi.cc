#include "coordinator/http_server/openapi.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/http/routes.h"
#include "coordinator/messages/chat_body.h"
#include "coordinator/openai/field_table.h"
#include "coordinator/responses/chat_translation.h"
#include "coordinator/token_routes/tokens_request.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

// The tables by one of which a body of the route is read; empty: by none.
std::vector<const FieldTable*> TablesOf(Route route) {
  switch (route) {
    case Route::kCompletions:
    case Route::kRenderCompletion:
      return {&CompletionFieldTable()};
    case Route::kChat:
    case Route::kRenderChat:
      return {&ChatFieldTable()};
    case Route::kTokenize:
      return {&TokenizeFieldTable()};
    case Route::kDetokenize:
      return {&DetokenizeFieldTable()};
    case Route::kGenerateTokens:
      return {&TokensFieldTable()};
    case Route::kPinPrefix:
      return {&CompletionFieldTable(), &ChatFieldTable()};
    case Route::kEmbeddings:
      return {&EmbeddingsFieldTable()};
    case Route::kPooling:
      return {&PoolingFieldTable()};
    case Route::kResponses:
      return {&ResponsesFieldTable()};
    case Route::kMessages:
      return {&MessagesFieldTable()};
    case Route::kCountTokens:
      return {&CountTokensFieldTable()};
    default:
      return {};
  }
}

Json TypeOf(FieldType type) {
  switch (type) {
    case FieldType::kInteger:
      return {{"type", "integer"}};
    case FieldType::kNumber:
      return {{"type", "number"}};
    case FieldType::kBoolean:
      return {{"type", "boolean"}};
    case FieldType::kString:
      return {{"type", "string"}};
    case FieldType::kTokenIds:
      return {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}};
    case FieldType::kStrings:
      return {{"type", "array"}, {"items", {{"type", "string"}, {"minLength", 1}}}};
    case FieldType::kTexts:
      return {
          {"anyOf", Json::array({{{"type", "string"}, {"minLength", 1}},
                                 {{"type", "array"}, {"items", {{"type", "string"}, {"minLength", 1}}}}})}};
    case FieldType::kOther:
      break;
  }
  return Json::object();
}

Json ObjectOf(const FieldTable& table);

Json SchemaOf(const FieldSpec& spec) {
  Json schema = TypeOf(spec.type);
  schema.update(Json::parse(absl::StrCat("{", spec.schema, "}")));
  if (spec.members != nullptr) schema.update(ObjectOf(spec.members()));
  if (!spec.not_null && !spec.required)
    schema = {{"anyOf", Json::array({std::move(schema), {{"type", "null"}}})}};
  schema["description"] = spec.help;
  return schema;
}

// Fields that the table does not have are ignored; fields without a help are refused, and not told.
Json ObjectOf(const FieldTable& table) {
  Json properties = Json::object(), required = Json::array();
  for (const FieldSpec& spec : table.specs()) {
    if (*spec.help == '\0') continue;
    properties[spec.name] = SchemaOf(spec);
    if (spec.required) required.push_back(spec.name);
  }
  Json object = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) object["required"] = std::move(required);
  return object;
}

Json BodyOf(Route route) {
  const std::vector<const FieldTable*> tables = TablesOf(route);
  if (tables.empty()) return {{"type", "object"}};
  if (tables.size() == 1) return ObjectOf(*tables[0]);
  Json either = Json::array();
  for (const FieldTable* table : tables) either.push_back(ObjectOf(*table));
  return {{"anyOf", std::move(either)}};
}

Json OperationOf(const RouteSpec& spec, bool has_body) {
  Json operation = {{"responses", {{"200", {{"description", "the answer"}}}}}};
  if (!has_body || !spec.json_body) return operation;
  operation["requestBody"] = {{"required", true},
                              {"content", {{"application/json", {{"schema", BodyOf(spec.route)}}}}}};
  return operation;
}

}  // namespace

Json OpenApi(bool admin, const std::string& version, const std::string& root) {
  Json paths = Json::object();
  for (const RouteSpec* spec : RoutesOf(admin)) {
    Json& path = paths[spec->path];
    if (spec->get) path["get"] = OperationOf(*spec, false);
    if (spec->post) path["post"] = OperationOf(*spec, true);
    if (!spec->get && !spec->post) path["delete"] = OperationOf(*spec, false);
  }
  Json document = {{"openapi", "3.1.0"}, {"info", {{"title", "Somnus"}, {"version", version}}}};
  if (!root.empty()) document["servers"] = Json::array({{{"url", root}}});
  document["paths"] = std::move(paths);
  return document;
}

}  // namespace somnus
