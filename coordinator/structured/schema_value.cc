#include "coordinator/structured/schema_value.h"

#include <cmath>

#include "base/status_macros.h"

namespace somnus {
namespace {

// Returns false from the enclosing function unless the expression gives true.
#define RETURN_UNLESS(expr)                     \
  do {                                          \
    ASSIGN_OR_RETURN(const bool holds, (expr)); \
    if (!holds) return false;                   \
  } while (false)

bool WithinCounts(int64_t count, const SchemaJson& schema, const char* min, const char* max) {
  const SchemaJson* least = FindMember(schema, min);
  const SchemaJson* most = FindMember(schema, max);
  return (least == nullptr || count >= CountOf(*least)) && (most == nullptr || count <= CountOf(*most));
}

}  // namespace

bool IsMultiple(const SchemaJson& value, const SchemaJson& divisor) {
  if (value.is_number_integer() && divisor.is_number_integer()) {
    const auto by = static_cast<__int128>(NumberOf(divisor));
    return static_cast<__int128>(NumberOf(value)) % by == 0;
  }
  const double quotient = value.get<double>() / divisor.get<double>();
  return std::isfinite(quotient) && std::floor(quotient) == quotient;
}

absl::StatusOr<bool> ValueMatcher::Matches(const SchemaJson& value, const SchemaJson* schema, int32_t depth) {
  RETURN_IF_ERROR(context_.Check(schema));
  if (schema->is_boolean()) return schema->get<bool>();
  if (depth > 4 * context_.options().max_depth) {
    return context_.Refuse(schema, "", "the schema refers to itself without an end");
  }
  RETURN_UNLESS(Applies(value, schema, depth));
  return Asserts(value, schema, depth);
}

absl::StatusOr<int64_t> ValueMatcher::CountMatches(const SchemaJson& value, const SchemaJson& schemas,
                                                   int32_t depth) {
  int64_t count = 0;
  for (const SchemaJson& schema : schemas) {
    ASSIGN_OR_RETURN(const bool matches, Matches(value, &schema, depth + 1));
    if (matches) ++count;
  }
  return count;
}

absl::StatusOr<bool> ValueMatcher::Applies(const SchemaJson& value, const SchemaJson* schema, int32_t depth) {
  if (FindMember(*schema, "$ref") != nullptr) {
    ASSIGN_OR_RETURN(const SchemaJson* target, context_.Target(schema));
    RETURN_UNLESS(Matches(value, target, depth + 1));
    if (context_.source().reference_hides_siblings()) return true;
  }
  if (const SchemaJson* all = FindMember(*schema, "allOf")) {
    ASSIGN_OR_RETURN(const int64_t count, CountMatches(value, *all, depth));
    if (count < static_cast<int64_t>(all->size())) return false;
  }
  if (const SchemaJson* any = FindMember(*schema, "anyOf")) {
    ASSIGN_OR_RETURN(const int64_t count, CountMatches(value, *any, depth));
    if (count == 0) return false;
  }
  if (const SchemaJson* one = FindMember(*schema, "oneOf")) {
    ASSIGN_OR_RETURN(const int64_t count, CountMatches(value, *one, depth));
    if (count != 1) return false;
  }
  if (const SchemaJson* negated = FindMember(*schema, "not")) {
    ASSIGN_OR_RETURN(const bool matches, Matches(value, negated, depth + 1));
    if (matches) return false;
  }
  RETURN_UNLESS(Conditional(value, schema, depth));
  return !value.is_object() ? true : Dependencies(value, schema, depth);
}

absl::StatusOr<bool> ValueMatcher::Conditional(const SchemaJson& value, const SchemaJson* schema,
                                               int32_t depth) {
  const SchemaJson* condition = FindMember(*schema, "if");
  if (condition == nullptr) return true;
  ASSIGN_OR_RETURN(const bool holds, Matches(value, condition, depth + 1));
  const SchemaJson* branch = FindMember(*schema, holds ? "then" : "else");
  return branch == nullptr ? true : Matches(value, branch, depth + 1);
}

absl::StatusOr<bool> ValueMatcher::Dependencies(const SchemaJson& value, const SchemaJson* schema,
                                                int32_t depth) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const SchemaJson* dependencies = FindMember(*schema, keyword);
    if (dependencies == nullptr) continue;
    for (const auto& member : dependencies->get_ref<const SchemaJson::object_t&>()) {
      if (FindMember(value, member.first) == nullptr) continue;
      if (!member.second.is_array()) {
        RETURN_UNLESS(Matches(value, &member.second, depth + 1));
        continue;
      }
      for (const SchemaJson& name : member.second) {
        if (FindMember(value, name.get_ref<const std::string&>()) == nullptr) return false;
      }
    }
  }
  return true;
}

absl::StatusOr<bool> ValueMatcher::Asserts(const SchemaJson& value, const SchemaJson* schema, int32_t depth) {
  if (schema->is_boolean()) return schema->get<bool>();
  if (context_.source().reference_hides_siblings() && FindMember(*schema, "$ref") != nullptr) return true;
  RETURN_IF_ERROR(context_.Spend());
  const SchemaJson* type = FindMember(*schema, "type");
  if (type != nullptr && (TypesOf(*type) & TypeOfValue(value)) == 0) return false;
  const SchemaJson* constant = FindMember(*schema, "const");
  if (constant != nullptr && !EqualValues(value, *constant)) return false;
  if (const SchemaJson* values = FindMember(*schema, "enum")) {
    bool found = false;
    for (const SchemaJson& candidate : *values) found = found || EqualValues(value, candidate);
    if (!found) return false;
  }
  if (value.is_number()) return Number(value, *schema);
  if (value.is_string()) return String(value, schema);
  if (value.is_array()) return Array(value, schema, depth);
  return value.is_object() ? Object(value, schema, depth) : true;
}

bool ValueMatcher::Number(const SchemaJson& value, const SchemaJson& schema) const {
  const long double number = NumberOf(value);
  const SchemaJson* divisor = FindMember(schema, "multipleOf");
  if (divisor != nullptr && !IsMultiple(value, *divisor)) return false;
  const SchemaJson* above = FindMember(schema, "exclusiveMinimum");
  const SchemaJson* below = FindMember(schema, "exclusiveMaximum");
  const SchemaJson* least = FindMember(schema, "minimum");
  const SchemaJson* most = FindMember(schema, "maximum");
  const bool open_below = above != nullptr && above->is_boolean() && above->get<bool>();
  const bool open_above = below != nullptr && below->is_boolean() && below->get<bool>();
  if (above != nullptr && above->is_number() && number <= NumberOf(*above)) return false;
  if (below != nullptr && below->is_number() && number >= NumberOf(*below)) return false;
  if (least != nullptr && (open_below ? number <= NumberOf(*least) : number < NumberOf(*least))) return false;
  return most == nullptr || (open_above ? number < NumberOf(*most) : number <= NumberOf(*most));
}

absl::StatusOr<bool> ValueMatcher::String(const SchemaJson& value, const SchemaJson* schema) {
  const std::string& text = value.get_ref<const std::string&>();
  RETURN_IF_ERROR(context_.Spend(1 + static_cast<int64_t>(text.size()) / 16));
  if (!WithinCounts(static_cast<int64_t>(CodePoints(text).size()), *schema, "minLength", "maxLength"))
    return false;
  if (const SchemaJson* pattern = FindMember(*schema, "pattern")) {
    ASSIGN_OR_RETURN(const RegexId language,
                     context_.Pattern(schema, "pattern", pattern->get_ref<const std::string&>()));
    if (!context_.arena().Matches(language, text)) return false;
  }
  if (FindMember(*schema, "format") == nullptr) return true;
  ASSIGN_OR_RETURN(const RegexId language, context_.Format(schema));
  return context_.arena().Matches(language, text);
}

absl::StatusOr<bool> ValueMatcher::Array(const SchemaJson& value, const SchemaJson* schema, int32_t depth) {
  if (FindMember(*schema, "unevaluatedItems") != nullptr) {
    return context_.Refuse(schema, "unevaluatedItems",
                           "the keyword is not supported beside enum, const or if");
  }
  if (!WithinCounts(static_cast<int64_t>(value.size()), *schema, "minItems", "maxItems")) return false;
  const SchemaJson* unique = FindMember(*schema, "uniqueItems");
  if (unique != nullptr && unique->get<bool>()) {
    RETURN_IF_ERROR(context_.Spend(static_cast<int64_t>(value.size() * value.size())));
    for (size_t i = 0; i < value.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (EqualValues(value[i], value[j])) return false;
      }
    }
  }
  RETURN_UNLESS(Items(value, schema, depth));
  return Contains(value, schema, depth);
}

absl::StatusOr<bool> ValueMatcher::Items(const SchemaJson& value, const SchemaJson* schema, int32_t depth) {
  const SchemaJson* items = FindMember(*schema, "items");
  const bool tuple = items != nullptr && items->is_array();
  const SchemaJson* prefix = tuple ? items : FindMember(*schema, "prefixItems");
  const SchemaJson* rest = tuple ? FindMember(*schema, "additionalItems") : items;
  for (size_t i = 0; i < value.size(); ++i) {
    const SchemaJson* item = prefix != nullptr && i < prefix->size() ? &(*prefix)[i] : rest;
    if (item != nullptr) RETURN_UNLESS(Matches(value[i], item, depth + 1));
  }
  return true;
}

absl::StatusOr<bool> ValueMatcher::Contains(const SchemaJson& value, const SchemaJson* schema,
                                            int32_t depth) {
  const SchemaJson* contains = FindMember(*schema, "contains");
  if (contains == nullptr) return true;
  int64_t count = 0;
  for (const SchemaJson& item : value) {
    ASSIGN_OR_RETURN(const bool matches, Matches(item, contains, depth + 1));
    if (matches) ++count;
  }
  if (FindMember(*schema, "minContains") == nullptr && count == 0) return false;
  return WithinCounts(count, *schema, "minContains", "maxContains");
}

absl::StatusOr<bool> ValueMatcher::Object(const SchemaJson& value, const SchemaJson* schema, int32_t depth) {
  if (FindMember(*schema, "unevaluatedProperties") != nullptr) {
    return context_.Refuse(schema, "unevaluatedProperties",
                           "the keyword is not supported beside enum, const or if");
  }
  if (!WithinCounts(static_cast<int64_t>(value.size()), *schema, "minProperties", "maxProperties"))
    return false;
  if (const SchemaJson* required = FindMember(*schema, "required")) {
    for (const SchemaJson& name : *required) {
      if (FindMember(value, name.get_ref<const std::string&>()) == nullptr) return false;
    }
  }
  for (const auto& member : value.get_ref<const SchemaJson::object_t&>()) {
    RETURN_UNLESS(Property(member.first, member.second, schema, depth));
  }
  return true;
}

absl::StatusOr<bool> ValueMatcher::Property(const std::string& name, const SchemaJson& value,
                                            const SchemaJson* schema, int32_t depth) {
  if (const SchemaJson* names = FindMember(*schema, "propertyNames")) {
    RETURN_UNLESS(Matches(SchemaJson(name), names, depth + 1));
  }
  bool evaluated = false;
  const SchemaJson* properties = FindMember(*schema, "properties");
  const SchemaJson* own = properties == nullptr ? nullptr : context_.Member(properties, name);
  if (own != nullptr) {
    evaluated = true;
    RETURN_UNLESS(Matches(value, own, depth + 1));
  }
  if (const SchemaJson* patterns = FindMember(*schema, "patternProperties")) {
    for (const auto& member : patterns->get_ref<const SchemaJson::object_t&>()) {
      ASSIGN_OR_RETURN(const RegexId pattern, context_.Pattern(patterns, member.first, member.first));
      if (!context_.arena().Matches(pattern, name)) continue;
      evaluated = true;
      RETURN_UNLESS(Matches(value, &member.second, depth + 1));
    }
  }
  const SchemaJson* additional = FindMember(*schema, "additionalProperties");
  return evaluated || additional == nullptr ? true : Matches(value, additional, depth + 1);
}

#undef RETURN_UNLESS

}  // namespace somnus
