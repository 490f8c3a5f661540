#include "coordinator/structured/schema_keywords.h"

#include "absl/container/flat_hash_map.h"

namespace somnus {
namespace {

absl::flat_hash_map<std::string, Keyword> Keywords() {
  using Shape = KeywordShape;
  const std::string dynamic = "dynamic references are not supported; use $ref with a fixed target";
  const std::string draft3 = "the keyword is of draft 3, which is not supported";
  return {
      {"$ref", {Shape::kString, false, ""}},
      {"allOf", {Shape::kSchemas, false, ""}},
      {"anyOf", {Shape::kSchemas, false, ""}},
      {"oneOf", {Shape::kSchemas, false, ""}},
      {"not", {Shape::kSchema, false, ""}},
      {"if", {Shape::kSchema, false, ""}},
      {"then", {Shape::kSchema, false, ""}},
      {"else", {Shape::kSchema, false, ""}},
      {"dependencies", {Shape::kDependencies, false, ""}},
      {"dependentRequired", {Shape::kStringsMap, false, ""}},
      {"dependentSchemas", {Shape::kSchemaMap, false, ""}},
      {"$defs", {Shape::kSchemaMap, false, ""}},
      {"definitions", {Shape::kSchemaMap, false, ""}},
      {"type", {Shape::kType, true, ""}},
      {"enum", {Shape::kValues, true, ""}},
      {"const", {Shape::kAny, true, ""}},
      {"minimum", {Shape::kNumber, true, ""}},
      {"maximum", {Shape::kNumber, true, ""}},
      {"exclusiveMinimum", {Shape::kBound, true, ""}},
      {"exclusiveMaximum", {Shape::kBound, true, ""}},
      {"multipleOf", {Shape::kPositive, true, ""}},
      {"minLength", {Shape::kCount, true, ""}},
      {"maxLength", {Shape::kCount, true, ""}},
      {"pattern", {Shape::kString, true, ""}},
      {"format", {Shape::kString, true, ""}},
      {"items", {Shape::kSchemaOrList, true, ""}},
      {"prefixItems", {Shape::kSchemas, true, ""}},
      {"additionalItems", {Shape::kSchema, true, ""}},
      {"minItems", {Shape::kCount, true, ""}},
      {"maxItems", {Shape::kCount, true, ""}},
      {"uniqueItems", {Shape::kBoolean, true, ""}},
      {"contains", {Shape::kSchema, true, ""}},
      {"minContains", {Shape::kCount, false, ""}},
      {"maxContains", {Shape::kCount, false, ""}},
      {"properties", {Shape::kSchemaMap, true, ""}},
      {"patternProperties", {Shape::kSchemaMap, true, ""}},
      {"additionalProperties", {Shape::kSchema, true, ""}},
      {"propertyNames", {Shape::kSchema, true, ""}},
      {"required", {Shape::kStrings, true, ""}},
      {"minProperties", {Shape::kCount, true, ""}},
      {"maxProperties", {Shape::kCount, true, ""}},
      {"unevaluatedProperties", {Shape::kSchema, true, ""}},
      {"unevaluatedItems", {Shape::kSchema, true, ""}},
      {"contentEncoding", {Shape::kContent, false, ""}},
      {"contentMediaType", {Shape::kContent, false, ""}},
      {"$dynamicRef", {Shape::kAny, true, dynamic}},
      {"$recursiveRef", {Shape::kAny, true, dynamic}},
      {"extends", {Shape::kAny, true, draft3}},
      {"disallow", {Shape::kAny, true, draft3}},
      {"divisibleBy", {Shape::kAny, true, draft3}},
  };
}

}  // namespace

SchemaPosition PositionOf(absl::string_view keyword) {
  const Keyword* found = FindKeyword(keyword);
  if (found == nullptr) return SchemaPosition::kNone;
  switch (found->shape) {
    case KeywordShape::kSchema:
      return SchemaPosition::kSchema;
    case KeywordShape::kSchemas:
    case KeywordShape::kSchemaOrList:
      return SchemaPosition::kList;
    case KeywordShape::kSchemaMap:
    case KeywordShape::kDependencies:
      return SchemaPosition::kMap;
    default:
      return SchemaPosition::kNone;
  }
}

const Keyword* FindKeyword(absl::string_view name) {
  static const auto* keywords = new absl::flat_hash_map<std::string, Keyword>(Keywords());
  const auto found = keywords->find(name);
  return found == keywords->end() ? nullptr : &found->second;
}

absl::string_view ShapeText(KeywordShape shape) {
  switch (shape) {
    case KeywordShape::kAny:
    case KeywordShape::kContent:
      return "a value";
    case KeywordShape::kBoolean:
      return "a boolean";
    case KeywordShape::kString:
      return "a string";
    case KeywordShape::kNumber:
      return "a number";
    case KeywordShape::kPositive:
      return "a number above 0";
    case KeywordShape::kBound:
      return "a number (or, by draft 4, a boolean)";
    case KeywordShape::kCount:
      return "a whole number of at least 0";
    case KeywordShape::kStrings:
      return "a list of strings";
    case KeywordShape::kValues:
      return "a list that is not empty";
    case KeywordShape::kType:
      return "the name of a type, or a list of such names";
    case KeywordShape::kSchema:
      return "a schema (an object or a boolean)";
    case KeywordShape::kSchemas:
      return "a list of schemas that is not empty";
    case KeywordShape::kSchemaOrList:
      return "a schema or a list of schemas";
    case KeywordShape::kSchemaMap:
      return "an object whose members are schemas";
    case KeywordShape::kStringsMap:
      return "an object whose members are lists of names";
    case KeywordShape::kDependencies:
      return "an object whose members are schemas or lists of names";
  }
  return "";
}

}  // namespace somnus
