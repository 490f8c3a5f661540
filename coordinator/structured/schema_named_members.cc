#include "coordinator/structured/schema_named_members.h"

#include "coordinator/structured/schema_keywords.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

void Close(Json* schema);

void CloseAll(Json* schemas) {
  for (Json& schema : *schemas) Close(&schema);
}

void Close(Json* schema) {
  if (!schema->is_object()) return;
  for (auto& [keyword, value] : schema->items()) {
    const SchemaPosition position = PositionOf(keyword);
    if (position == SchemaPosition::kMap || (position == SchemaPosition::kList && value.is_array())) {
      CloseAll(&value);
    } else if (position != SchemaPosition::kNone) {
      Close(&value);
    }
  }
  const bool names_members = schema->contains("properties") || schema->contains("patternProperties");
  if (names_members && !schema->contains("additionalProperties") &&
      !schema->contains("unevaluatedProperties"))
    (*schema)["additionalProperties"] = false;
  if (schema->contains("prefixItems") && !schema->contains("items") && !schema->contains("unevaluatedItems"))
    (*schema)["items"] = false;
}

}  // namespace

nlohmann::ordered_json WithNamedMembersOnly(nlohmann::ordered_json schema) {
  Close(&schema);
  return schema;
}

}  // namespace somnus
