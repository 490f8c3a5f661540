#include "coordinator/structured/schema_writer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/structured/schema_brackets.h"
#include "coordinator/structured/schema_regex_text.h"

namespace somnus {
namespace {

// A subschema nested deeper than this is written into "$defs".
constexpr int32_t kInlineDepth = 12;
// xgrammar writes a rule for every pair of a property and a count of properties.
constexpr int64_t kMaxCountedProperties = 20'000;

// The keywords whose patterns and values may nest deeply.
constexpr absl::string_view kOfStrings[] = {"pattern", "format"};
constexpr absl::string_view kOfNames[] = {"patternProperties", "propertyNames"};
constexpr absl::string_view kOfValues[] = {"enum", "const"};

bool IsSimple(const NumberPart& part) {
  return !part.least && !part.most && !part.low && !part.high && part.multiple_of == 1;
}

bool IsSimple(const ArrayPart& part) {
  return part.prefix.empty() && part.rest == Conjunctions::kAnything && part.min == 0 && part.max == kNoLimit;
}

bool IsSimple(const ObjectPart& part, RegexId any_string) {
  return part.members.empty() && part.min == 0 && part.max == kNoLimit && part.others.size() == 1 &&
         part.others[0].names == any_string && part.others[0].value == Conjunctions::kAnything;
}

bool IsAnything(const Case& one, RegexId any_string) {
  return !one.values && one.has_null && one.has_true && one.has_false && one.number && !one.number->whole &&
         IsSimple(*one.number) && one.strings == any_string && one.array && IsSimple(*one.array) &&
         one.object && IsSimple(*one.object, any_string);
}

bool IsScalar(const Case& one) {
  if (!one.values) return !one.array && !one.object;
  return one.values->size() <= 8 &&
         std::none_of(one.values->begin(), one.values->end(),
                      [](const SchemaJson& value) { return value.is_structured(); });
}

// xgrammar's parser of JSON writes other control characters in ways of its own.
bool HasPlainText(absl::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == 0x7F ||
           (byte < 0x20 && absl::string_view("\b\f\n\r\t").find(c) == absl::string_view::npos);
  });
}

SchemaJson TypeOnly(std::vector<std::string> types) {
  SchemaJson schema = SchemaJson::object();
  if (types.size() == 1) {
    schema["type"] = types[0];
  } else {
    schema["type"] = types;
  }
  return schema;
}

SchemaJson Constant(SchemaJson value) {
  SchemaJson schema = SchemaJson::object();
  schema["const"] = std::move(value);
  return schema;
}

}  // namespace

absl::StatusOr<SchemaJson> SchemaWriter::Write(const SchemaJson* root) {
  RETURN_IF_ERROR(context_.Check(root));
  const ConjunctionId id = conjunctions_.Of({{root}});
  RETURN_IF_ERROR(Collect(id));
  FindFulfillable();
  if (!IsFulfillable(id)) return context_.Refuse(root, "", "no value fulfils the schema");
  CountUses(id);
  ASSIGN_OR_RETURN(SchemaJson out, Reference(id, 0));
  SchemaJson definitions = SchemaJson::object();
  while (!unwritten_.empty()) {
    const ConjunctionId next = unwritten_.front();
    unwritten_.pop_front();
    ASSIGN_OR_RETURN(definitions[definitions_[next].name], Inline(next, 1));
  }
  if (!definitions.empty()) out["$defs"] = std::move(definitions);
  RETURN_IF_ERROR(CheckSize(out));
  return out;
}

absl::Status SchemaWriter::CheckSize(const SchemaJson& written) {
  const SchemaJson* root = &context_.source().root();
  const std::string text = written.dump();
  if (static_cast<int64_t>(text.size()) > context_.options().max_output_bytes)
    return context_.Refuse(root, "", "the schema is too large once it is written for the grammar engine");
  const int64_t depth = BracketDepth(text, /*json=*/true), most = context_.options().max_output_depth;
  if (depth <= most) return absl::OkStatus();
  const SchemaJson* node = deepest_node_ == nullptr ? root : deepest_node_;
  return context_.Refuse(
      node, deepest_keyword_,
      absl::StrCat("the grammar engine would get ", depth, " brackets within each other, and takes ", most,
                   "; use patterns with fewer groups and shorter lengths, and values that are nested less"));
}

void SchemaWriter::NoteDepth(int64_t depth, const SchemaJson* node, Keywords keywords) {
  if (depth <= deepest_ || node == nullptr) return;
  deepest_ = depth;
  deepest_node_ = node;
  const auto* const keyword = std::find_if(keywords.begin(), keywords.end(), [node](absl::string_view name) {
    return FindMember(*node, name) != nullptr;
  });
  deepest_keyword_ = keyword == keywords.end() ? absl::string_view() : *keyword;
}

absl::Status SchemaWriter::Collect(ConjunctionId root) {
  std::deque<ConjunctionId> pending = {root};
  while (!pending.empty()) {
    const ConjunctionId id = pending.front();
    pending.pop_front();
    if (definitions_.contains(id)) continue;
    if (static_cast<int64_t>(definitions_.size()) >= context_.options().max_definitions) {
      return context_.Refuse(&context_.source().root(), "", "the schema combines too many subschemas");
    }
    // {} is written as such.
    ASSIGN_OR_RETURN(std::vector<Case> cases, builder_.Build(id));
    for (const Case& one : cases) {
      for (const ConjunctionId child : ChildrenOf(one)) pending.push_back(child);
    }
    definitions_[id].cases = std::move(cases);
    order_.push_back(id);
  }
  return absl::OkStatus();
}

std::vector<ConjunctionId> SchemaWriter::ChildrenOf(const Case& one) const {
  std::vector<ConjunctionId> children;
  if (one.array) {
    children = one.array->prefix;
    children.push_back(one.array->rest);
  }
  if (one.object) {
    for (const ObjectPart::Member& member : one.object->members) children.push_back(member.value);
    for (const ObjectPart::Others& others : one.object->others) children.push_back(others.value);
  }
  return children;
}

bool SchemaWriter::IsFulfillable(ConjunctionId id) const {
  const auto found = definitions_.find(id);
  return found != definitions_.end() && found->second.fulfillable;
}

int64_t SchemaWriter::LongestOf(const ArrayPart& part) const {
  for (size_t i = 0; i < part.prefix.size(); ++i) {
    const auto length = static_cast<int64_t>(i);
    if (part.max != kNoLimit && part.max <= length) return part.max;
    if (!IsFulfillable(part.prefix[i])) return length;
  }
  if (IsFulfillable(part.rest)) return part.max;
  const auto length = static_cast<int64_t>(part.prefix.size());
  return part.max == kNoLimit ? length : std::min(part.max, length);
}

bool SchemaWriter::IsFulfillable(const ObjectPart& part) const {
  int64_t possible = 0;
  for (const ObjectPart::Member& member : part.members) {
    const bool fulfillable = IsFulfillable(member.value);
    if (member.required && !fulfillable) return false;
    if (fulfillable) ++possible;
  }
  const bool open =
      std::any_of(part.others.begin(), part.others.end(),
                  [&](const ObjectPart::Others& others) { return IsFulfillable(others.value); });
  return open || possible >= part.min;
}

bool SchemaWriter::IsFulfillable(const Case& one) const {
  if (one.values || one.has_null || one.has_true || one.has_false || one.number || one.strings) return true;
  if (one.array) {
    const int64_t longest = LongestOf(*one.array);
    if (longest == kNoLimit || longest >= one.array->min) return true;
  }
  return one.object && IsFulfillable(*one.object);
}

void SchemaWriter::FindFulfillable() {
  // The least fixed point: what needs itself without an end has no value.
  for (bool changed = true; changed;) {
    changed = false;
    for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
      Definition& definition = definitions_[*id];
      if (definition.fulfillable) continue;
      definition.fulfillable = std::any_of(definition.cases.begin(), definition.cases.end(),
                                           [&](const Case& one) { return IsFulfillable(one); });
      changed = changed || definition.fulfillable;
    }
  }
}

void SchemaWriter::CountUses(ConjunctionId root) {
  std::vector<ConjunctionId> pending = {root};
  while (!pending.empty()) {
    const ConjunctionId id = pending.back();
    pending.pop_back();
    if (id == Conjunctions::kAnything || !IsFulfillable(id) || ++definitions_[id].uses > 1) continue;
    for (const Case& one : definitions_[id].cases) {
      const std::vector<ConjunctionId> children = ChildrenOf(one);
      pending.insert(pending.end(), children.begin(), children.end());
    }
  }
}

absl::StatusOr<SchemaJson> SchemaWriter::Reference(ConjunctionId id, int32_t depth) {
  if (id == Conjunctions::kAnything) return SchemaJson::object();
  Definition& definition = definitions_[id];
  const bool scalar = std::all_of(definition.cases.begin(), definition.cases.end(), IsScalar);
  if (scalar || (definition.uses <= 1 && depth < kInlineDepth)) return Inline(id, depth);
  if (definition.name.empty()) {
    definition.name = absl::StrCat("d", names_++);
    unwritten_.push_back(id);
  }
  return SchemaJson{{"$ref", absl::StrCat("#/$defs/", definition.name)}};
}

absl::StatusOr<SchemaJson> SchemaWriter::Inline(ConjunctionId id, int32_t depth) {
  RETURN_IF_ERROR(context_.Spend());
  std::vector<SchemaJson> parts;
  for (const Case& one : definitions_[id].cases) {
    if (!IsFulfillable(one)) continue;
    if (IsAnything(one, context_.arena().AnyString())) return SchemaJson::object();
    RETURN_IF_ERROR(AddCase(one, depth, &parts));
  }
  std::vector<SchemaJson> unique;
  for (SchemaJson& part : parts) {
    RETURN_IF_ERROR(context_.Spend(1 + static_cast<int64_t>(unique.size()) / 8));
    if (std::find(unique.begin(), unique.end(), part) == unique.end()) unique.push_back(std::move(part));
  }
  if (unique.size() == 1) return std::move(unique[0]);
  SchemaJson out = SchemaJson::object();
  out["anyOf"] = std::move(unique);
  return out;
}

absl::Status SchemaWriter::AddCase(const Case& one, int32_t depth, std::vector<SchemaJson>* parts) {
  if (one.values) return AddValues(*one.values, one.node, parts);
  const RegexId any_string = context_.arena().AnyString();
  std::vector<std::string> simple;
  std::vector<SchemaJson> others;
  if (one.object && IsFulfillable(*one.object)) {
    ASSIGN_OR_RETURN(SchemaJson object, WriteObject(*one.object, one.node, depth));
    others.push_back(std::move(object));
  }
  if (one.array && (LongestOf(*one.array) == kNoLimit || LongestOf(*one.array) >= one.array->min)) {
    ASSIGN_OR_RETURN(SchemaJson array, WriteArray(*one.array, depth));
    others.push_back(std::move(array));
  }
  if (one.strings == any_string) {
    simple.push_back("string");
  } else if (one.strings) {
    ASSIGN_OR_RETURN(SchemaJson strings, WriteStrings(*one.strings, one.node, kOfStrings));
    others.push_back(std::move(strings));
  }
  if (one.number && IsSimple(*one.number)) {
    simple.push_back(one.number->whole ? "integer" : "number");
  } else if (one.number) {
    others.push_back(WriteNumber(*one.number));
  }
  if (one.has_true && one.has_false) {
    simple.push_back("boolean");
  } else if (one.has_true || one.has_false) {
    others.push_back({{"const", one.has_true}});
  }
  if (one.has_null) simple.push_back("null");
  if (!simple.empty()) others.push_back(TypeOnly(std::move(simple)));
  parts->insert(parts->end(), others.begin(), others.end());
  return absl::OkStatus();
}

absl::Status SchemaWriter::AddValues(const std::vector<SchemaJson>& values, const SchemaJson* node,
                                     std::vector<SchemaJson>* parts) {
  SchemaJson simple = SchemaJson::array();
  std::vector<SchemaJson> others;
  for (const SchemaJson& value : values) {
    ASSIGN_OR_RETURN(SchemaJson written, WriteValue(value, node, 0));
    if (const SchemaJson* constant = FindMember(written, "const")) {
      simple.push_back(*constant);
    } else {
      others.push_back(std::move(written));
    }
  }
  if (simple.size() == 1) parts->push_back({{"const", simple[0]}});
  if (simple.size() > 1) parts->push_back({{"enum", std::move(simple)}});
  parts->insert(parts->end(), others.begin(), others.end());
  return absl::OkStatus();
}

absl::StatusOr<SchemaJson> SchemaWriter::WriteValue(const SchemaJson& value, const SchemaJson* node,
                                                    int32_t depth) {
  RETURN_IF_ERROR(context_.Spend());
  NoteDepth(2 * int64_t{depth}, node, kOfValues);
  if (value.is_string() && !HasPlainText(value.get_ref<const std::string&>())) {
    return WriteStrings(context_.arena().Literal(value.get_ref<const std::string&>()), node, kOfValues);
  }
  if (value.is_number()) {
    const long double number = NumberOf(value);
    const bool whole = std::floor(number) == number;
    if (whole && std::abs(number) <= static_cast<long double>(std::numeric_limits<int64_t>::max())) {
      return Constant(static_cast<int64_t>(number));
    }
    if (value.is_number_integer()) {
      return context_.Refuse(node, "", "integers of enum and const must be within 64 bits");
    }
  }
  if (!value.is_structured()) return Constant(value);
  // A list or an object is written member by member, so that white space is as free as everywhere else.
  return value.is_array() ? WriteList(value, node, depth) : WriteMembers(value, node, depth);
}

absl::StatusOr<SchemaJson> SchemaWriter::WriteList(const SchemaJson& value, const SchemaJson* node,
                                                   int32_t depth) {
  SchemaJson out = {{"type", "array"}};
  SchemaJson items = SchemaJson::array();
  for (const SchemaJson& item : value) {
    ASSIGN_OR_RETURN(SchemaJson written, WriteValue(item, node, depth + 1));
    items.push_back(std::move(written));
  }
  if (!items.empty()) {
    out["minItems"] = items.size();
    out["prefixItems"] = std::move(items);
  }
  out["items"] = false;
  return out;
}

absl::StatusOr<SchemaJson> SchemaWriter::WriteMembers(const SchemaJson& value, const SchemaJson* node,
                                                      int32_t depth) {
  SchemaJson out = {{"type", "object"}};
  SchemaJson required = SchemaJson::array();
  for (const auto& member : value.get_ref<const SchemaJson::object_t&>()) {
    ASSIGN_OR_RETURN(out["properties"][member.first], WriteValue(member.second, node, depth + 1));
    required.push_back(member.first);
  }
  if (!required.empty()) out["required"] = std::move(required);
  out["additionalProperties"] = false;
  return out;
}

SchemaJson SchemaWriter::WriteNumber(const NumberPart& part) const {
  SchemaJson out = SchemaJson::object();
  if (part.low && part.high && NumberOf(*part.low) == NumberOf(*part.high)) {
    out["const"] = *part.low;
    return out;
  }
  out["type"] = part.whole ? "integer" : "number";
  if (part.least) out["minimum"] = *part.least;
  if (part.most) out["maximum"] = *part.most;
  if (part.low) out[part.low_open ? "exclusiveMinimum" : "minimum"] = *part.low;
  if (part.high) out[part.high_open ? "exclusiveMaximum" : "maximum"] = *part.high;
  if (part.multiple_of > 1) out["multipleOf"] = part.multiple_of;
  return out;
}

absl::StatusOr<std::string> SchemaWriter::Pattern(RegexId language, const SchemaJson* node,
                                                  Keywords keywords) {
  absl::StatusOr<std::string> pattern =
      XgrammarPattern(language, context_.options().max_pattern_bytes, &context_.arena());
  if (pattern.ok()) NoteDepth(BracketDepth(*pattern, /*json=*/false), node, keywords);
  if (pattern.ok()) return pattern;
  return context_.Refuse(node, "", "patterns, formats and lengths combine to a pattern that is too large");
}

absl::StatusOr<SchemaJson> SchemaWriter::WriteStrings(RegexId language, const SchemaJson* node,
                                                      Keywords keywords) {
  SchemaJson out = SchemaJson::object();
  if (language == context_.arena().Empty()) {
    out["const"] = "";
    return out;
  }
  ASSIGN_OR_RETURN(const std::string pattern, Pattern(language, node, keywords));
  out["type"] = "string";
  out["pattern"] = pattern;
  return out;
}

absl::StatusOr<SchemaJson> SchemaWriter::WriteArray(const ArrayPart& part, int32_t depth) {
  const int64_t longest = LongestOf(part);
  auto prefix_length = static_cast<int64_t>(part.prefix.size());
  if (longest != kNoLimit) prefix_length = std::min(prefix_length, longest);
  SchemaJson out = {{"type", "array"}};
  SchemaJson prefix = SchemaJson::array();
  for (int64_t i = 0; i < prefix_length; ++i) {
    ASSIGN_OR_RETURN(SchemaJson item, Reference(part.prefix[i], depth + 1));
    prefix.push_back(std::move(item));
  }
  if (!prefix.empty()) out["prefixItems"] = std::move(prefix);
  if (longest == prefix_length) {
    out["items"] = false;
  } else {
    ASSIGN_OR_RETURN(out["items"], Reference(part.rest, depth + 1));
  }
  if (part.min > 0) out["minItems"] = part.min;
  if (longest != kNoLimit && longest != prefix_length) out["maxItems"] = longest;
  return out;
}

absl::StatusOr<SchemaJson> SchemaWriter::WriteObject(const ObjectPart& part, const SchemaJson* node,
                                                     int32_t depth) {
  SchemaJson out = {{"type", "object"}};
  SchemaJson properties = SchemaJson::object();
  SchemaJson required = SchemaJson::array();
  if (part.max != 0) {
    for (const ObjectPart::Member& member : part.members) {
      if (!IsFulfillable(member.value)) continue;
      // The names of members are unique, so that no search for the name is needed.
      ASSIGN_OR_RETURN(SchemaJson value, Reference(member.value, depth + 1));
      properties.get_ref<SchemaJson::object_t&>().emplace_back(member.name, std::move(value));
      if (member.required) required.push_back(member.name);
    }
  }
  if (!properties.empty()) out["properties"] = std::move(properties);
  if (!required.empty()) out["required"] = std::move(required);
  if (part.max == 0) {
    out["additionalProperties"] = false;
    return out;
  }
  RETURN_IF_ERROR(WriteOthers(part, node, depth, &out));
  RETURN_IF_ERROR(WriteCounts(part, node, &out));
  return out;
}

absl::Status SchemaWriter::WriteOthers(const ObjectPart& part, const SchemaJson* node, int32_t depth,
                                       SchemaJson* object) {
  SchemaJson patterns = SchemaJson::object();
  RegexArena& arena = context_.arena();
  for (const ObjectPart::Others& others : part.others) {
    if (!IsFulfillable(others.value)) continue;
    ASSIGN_OR_RETURN(SchemaJson value, Reference(others.value, depth + 1));
    if (others.names == arena.AnyString()) {
      (*object)["additionalProperties"] = std::move(value);
      return absl::OkStatus();
    }
    const RegexId plain = WithoutEscapes(others.names, &arena);
    const RegexId names = plain == arena.Nothing() ? others.names : plain;
    if (arena.term(names).nullable) (*object)["properties"][""] = value;
    if (names == arena.Empty()) continue;
    ASSIGN_OR_RETURN(const std::string pattern, Pattern(names, node, kOfNames));
    patterns[pattern] = std::move(value);
  }
  if (!patterns.empty()) (*object)["patternProperties"] = std::move(patterns);
  (*object)["additionalProperties"] = false;
  return absl::OkStatus();
}

absl::Status SchemaWriter::WriteCounts(const ObjectPart& part, const SchemaJson* node, SchemaJson* object) {
  const SchemaJson* properties = FindMember(*object, "properties");
  const SchemaJson* required = FindMember(*object, "required");
  const auto named = static_cast<int64_t>(properties == nullptr ? 0 : properties->size());
  const auto needed = static_cast<int64_t>(required == nullptr ? 0 : required->size());
  const SchemaJson* additional = FindMember(*object, "additionalProperties");
  const bool open = FindMember(*object, "patternProperties") != nullptr || !additional->is_boolean();
  if (part.min > needed) {
    if (open && part.min > needed + 1) {
      return context_.Refuse(node, "minProperties",
                             "a name could be repeated to reach the count; use \"required\", or set "
                             "additionalProperties to false");
    }
    (*object)["minProperties"] = part.min;
  }
  if (part.max != kNoLimit && (open || part.max < named)) (*object)["maxProperties"] = part.max;
  const bool counted = object->contains("minProperties") || object->contains("maxProperties");
  if (counted && named * (named + 1) > kMaxCountedProperties) {
    return context_.Refuse(node, "",
                           "minProperties and maxProperties are not supported beside so many properties");
  }
  return absl::OkStatus();
}

}  // namespace somnus
