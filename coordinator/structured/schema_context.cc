#include "coordinator/structured/schema_context.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/structured/schema_formats.h"
#include "coordinator/structured/schema_regex_parser.h"

namespace somnus {
namespace {

TypeSet TypeNamed(absl::string_view name) {
  if (name == "null") return kNullType;
  if (name == "boolean") return kBooleanType;
  if (name == "integer") return kWholeType;
  if (name == "number") return kNumberType;
  if (name == "string") return kStringType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return 0;
}

bool IsSchema(const SchemaJson& value) { return value.is_object() || value.is_boolean(); }

bool AllOf(const SchemaJson& list, bool (*holds)(const SchemaJson&)) {
  return std::all_of(list.begin(), list.end(), [&](const SchemaJson& element) { return holds(element); });
}

bool IsString(const SchemaJson& value) { return value.is_string(); }
bool IsStrings(const SchemaJson& value) { return value.is_array() && AllOf(value, IsString); }
bool IsType(const SchemaJson& value) {
  return value.is_string() && TypeNamed(value.get_ref<const std::string&>()) != 0;
}
bool IsDependency(const SchemaJson& value) { return IsSchema(value) || IsStrings(value); }

bool HasShape(const SchemaJson& value, KeywordShape shape) {
  switch (shape) {
    case KeywordShape::kAny:
    case KeywordShape::kContent:
      return true;
    case KeywordShape::kBoolean:
      return value.is_boolean();
    case KeywordShape::kString:
      return value.is_string();
    case KeywordShape::kNumber:
      return value.is_number();
    case KeywordShape::kPositive:
      return value.is_number() && NumberOf(value) > 0;
    case KeywordShape::kBound:
      return value.is_number() || value.is_boolean();
    case KeywordShape::kCount:
      return value.is_number() && NumberOf(value) >= 0 && std::floor(NumberOf(value)) == NumberOf(value);
    case KeywordShape::kStrings:
      return IsStrings(value);
    case KeywordShape::kValues:
      return value.is_array() && !value.empty();
    case KeywordShape::kType:
      return IsType(value) || (value.is_array() && !value.empty() && AllOf(value, IsType));
    case KeywordShape::kSchema:
      return IsSchema(value);
    case KeywordShape::kSchemas:
      return value.is_array() && !value.empty() && AllOf(value, IsSchema);
    case KeywordShape::kSchemaOrList:
      return IsSchema(value) || (value.is_array() && AllOf(value, IsSchema));
    case KeywordShape::kSchemaMap:
      return value.is_object() && AllOf(value, IsSchema);
    case KeywordShape::kStringsMap:
      return value.is_object() && AllOf(value, IsStrings);
    case KeywordShape::kDependencies:
      return value.is_object() && AllOf(value, IsDependency);
  }
  return false;
}

}  // namespace

TypeSet TypeOfValue(const SchemaJson& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_number()) return std::floor(NumberOf(value)) == NumberOf(value) ? kWholeType : kFractionType;
  if (value.is_string()) return kStringType;
  return value.is_array() ? kArrayType : kObjectType;
}

TypeSet TypesOf(const SchemaJson& type) {
  if (type.is_string()) return TypeNamed(type.get_ref<const std::string&>());
  TypeSet types = 0;
  for (const SchemaJson& name : type) types |= TypeNamed(name.get_ref<const std::string&>());
  return types;
}

long double NumberOf(const SchemaJson& number) {
  if (number.is_number_unsigned()) return static_cast<long double>(number.get<uint64_t>());
  if (number.is_number_integer()) return static_cast<long double>(number.get<int64_t>());
  return static_cast<long double>(number.get<double>());
}

int64_t CountOf(const SchemaJson& count) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return NumberOf(count) > kMost ? kMost : static_cast<int64_t>(NumberOf(count));
}

bool EqualValues(const SchemaJson& a, const SchemaJson& b) {
  if (a.is_number() && b.is_number()) return NumberOf(a) == NumberOf(b);
  if (a.is_array() && b.is_array()) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), EqualValues);
  }
  if (!a.is_object() || !b.is_object()) return a == b;
  if (a.size() != b.size()) return false;
  for (const auto& member : a.get_ref<const SchemaJson::object_t&>()) {
    const SchemaJson* other = FindMember(b, member.first);
    if (other == nullptr || !EqualValues(member.second, *other)) return false;
  }
  return true;
}

absl::Status GateContext::Refuse(const SchemaJson* node, absl::string_view keyword,
                                 absl::string_view message) {
  refusal_.pointer = source_.PointerOf(node);
  if (!keyword.empty()) AppendPointerToken(keyword, &refusal_.pointer);
  refusal_.keyword = std::string(keyword);
  refusal_.message = std::string(message);
  return absl::InvalidArgumentError(message);
}

absl::Status GateContext::Spend(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ >= 0 && !arena_.exhausted()) return absl::OkStatus();
  refusal_ = {"", "", "the schema is too complex; combine fewer allOf, anyOf, oneOf, not and patterns"};
  return absl::ResourceExhaustedError(refusal_.message);
}

absl::Status GateContext::Check(const SchemaJson* node) {
  RETURN_IF_ERROR(Spend());
  if (!IsSchema(*node)) return Refuse(node, "", "a schema must be an object or a boolean");
  if (!node->is_object() || checked_.contains(node)) return absl::OkStatus();
  const bool only_reference = source_.reference_hides_siblings() && FindMember(*node, "$ref") != nullptr;
  for (const auto& member : node->get_ref<const SchemaJson::object_t&>()) {
    if (only_reference && member.first != "$ref") continue;
    RETURN_IF_ERROR(CheckKeyword(node, member.first, member.second));
  }
  checked_.insert(node);
  return absl::OkStatus();
}

absl::Status GateContext::CheckKeyword(const SchemaJson* node, const std::string& name,
                                       const SchemaJson& value) {
  const Keyword* keyword = FindKeyword(name);
  if (keyword == nullptr) return absl::OkStatus();
  if (!keyword->refusal.empty()) return Refuse(node, name, keyword->refusal);
  if (keyword->shape == KeywordShape::kContent && source_.reference_hides_siblings()) {
    return Refuse(node, name,
                  "up to draft 7 the keyword may restrict strings, which is not enforced; leave it out");
  }
  if (!HasShape(value, keyword->shape)) {
    return Refuse(node, name, absl::StrCat("\"", name, "\" must be ", ShapeText(keyword->shape)));
  }
  if (name == "minContains" && source_.reference_hides_siblings() && CountOf(value) == 0) {
    return Refuse(node, name,
                  "up to draft 7 the keyword is unknown, so that \"contains\" would need an item");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<const SchemaJson*>> GateContext::AppliedInPlace(const SchemaJson* node) {
  std::vector<const SchemaJson*> applied;
  RETURN_IF_ERROR(Check(node));
  if (!node->is_object()) return applied;
  if (FindMember(*node, "$ref") != nullptr) {
    ASSIGN_OR_RETURN(const SchemaJson* target, Target(node));
    applied.push_back(target);
    if (source_.reference_hides_siblings()) return applied;
  }
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const SchemaJson* schemas = FindMember(*node, keyword);
    if (schemas == nullptr) continue;
    for (const SchemaJson& schema : *schemas) applied.push_back(&schema);
  }
  for (const char* keyword : {"not", "if", "then", "else"}) {
    if (const SchemaJson* schema = FindMember(*node, keyword)) applied.push_back(schema);
  }
  for (const char* keyword : {"dependencies", "dependentSchemas"}) {
    const SchemaJson* schemas = FindMember(*node, keyword);
    if (schemas == nullptr) continue;
    for (const SchemaJson& schema : *schemas) {
      if (IsSchema(schema)) applied.push_back(&schema);
    }
  }
  return applied;
}

absl::Status GateContext::CheckLoops(const SchemaJson* node) {
  struct Visit {
    const SchemaJson* node;
    std::vector<const SchemaJson*> rest;
  };
  std::vector<Visit> path;
  const auto enter = [&](const SchemaJson* next) -> absl::Status {
    const auto [state, inserted] = loop_free_.emplace(next, false);
    if (!inserted) {
      if (state->second) return absl::OkStatus();
      return Refuse(next, "", "the schema applies itself to the same value without an end");
    }
    ASSIGN_OR_RETURN(std::vector<const SchemaJson*> applied, AppliedInPlace(next));
    path.push_back({next, std::move(applied)});
    return absl::OkStatus();
  };
  absl::Status status = enter(node);
  while (status.ok() && !path.empty()) {
    if (path.back().rest.empty()) {
      loop_free_[path.back().node] = true;
      path.pop_back();
      continue;
    }
    const SchemaJson* next = path.back().rest.back();
    path.back().rest.pop_back();
    status = enter(next);
  }
  // A schema that was not visited to its end is visited again by the next call.
  for (const Visit& visit : path) loop_free_.erase(visit.node);
  return status;
}

absl::StatusOr<const SchemaJson*> GateContext::Target(const SchemaJson* node) {
  const std::string& reference = FindMember(*node, "$ref")->get_ref<const std::string&>();
  const SchemaJson* target = source_.Resolve(node, reference);
  if (target == nullptr) {
    return Refuse(node, "$ref", "the target is not within the schema; copy the target into \"$defs\"");
  }
  if (!IsSchema(*target)) return Refuse(node, "$ref", "the target is not a schema");
  return target;
}

const SchemaJson* GateContext::Referred(const SchemaJson* node) {
  // A longer chain may be a loop, which CheckLoops finds.
  constexpr int kLongestChain = 16;
  for (int i = 0; i < kLongestChain && node->is_object(); ++i) {
    bool reference = false;
    for (const auto& member : node->get_ref<const SchemaJson::object_t&>()) {
      const Keyword* keyword = FindKeyword(member.first);
      if (member.first == "$ref") {
        reference = member.second.is_string();
      } else if (keyword != nullptr && member.first != "$defs" && member.first != "definitions") {
        return node;
      }
    }
    if (!reference) return node;
    const SchemaJson* target =
        source_.Resolve(node, FindMember(*node, "$ref")->get_ref<const std::string&>());
    if (target == nullptr || !IsSchema(*target)) return node;
    node = target;
  }
  return node;
}

absl::StatusOr<RegexId> GateContext::Pattern(const SchemaJson* node, absl::string_view keyword,
                                             const std::string& pattern) {
  RETURN_IF_ERROR(Spend());
  auto found = patterns_.find(pattern);
  if (found == patterns_.end()) {
    found = patterns_.emplace(pattern, ParsePattern(pattern, options_.regex, &arena_)).first;
  }
  if (!found->second.ok()) return Refuse(node, keyword, found->second.status().message());
  return found->second;
}

absl::StatusOr<RegexId> GateContext::Format(const SchemaJson* node) {
  const std::string& format = FindMember(*node, "format")->get_ref<const std::string&>();
  if (IsHint(format)) return arena_.AnyString();
  const std::string* pattern = FormatPattern(format);
  if (pattern == nullptr) {
    return Refuse(node, "format", "the format is not enforced; leave \"format\" out, or use \"pattern\"");
  }
  return Pattern(node, "format", *pattern);
}

const SchemaJson* GateContext::Member(const SchemaJson* object, absl::string_view name) {
  if (object->size() < 8) return FindMember(*object, name);
  auto [index, inserted] = members_.try_emplace(object);
  if (inserted) {
    for (const auto& member : object->get_ref<const SchemaJson::object_t&>()) {
      index->second.emplace(member.first, &member.second);
    }
  }
  const auto found = index->second.find(name);
  return found == index->second.end() ? nullptr : found->second;
}

}  // namespace somnus
