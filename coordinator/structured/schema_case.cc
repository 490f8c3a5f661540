#include "coordinator/structured/schema_case.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// Emptiness is looked for through so many required members, one within the other.
constexpr int32_t kEmptinessDepth = 5;
// Patterns of an object's keys, which are combined with each other.
constexpr size_t kMaxKeyPatterns = 6;

const SchemaJson* Holding(const Atom& atom, const char* keyword) {
  return atom.facet == Facet::kHolds ? FindMember(*atom.node, keyword) : nullptr;
}

// The schema of the array's element `index`, nullptr: any.
const SchemaJson* ItemOf(const SchemaJson& schema, size_t index, bool rest) {
  const SchemaJson* items = FindMember(schema, "items");
  const bool tuple = items != nullptr && items->is_array();
  const SchemaJson* prefix = tuple ? items : FindMember(schema, "prefixItems");
  if (!rest && prefix != nullptr && index < prefix->size()) return &(*prefix)[index];
  return tuple ? FindMember(schema, "additionalItems") : items;
}

size_t PrefixLength(const SchemaJson& schema) {
  const SchemaJson* items = FindMember(schema, "items");
  const SchemaJson* prefix =
      items != nullptr && items->is_array() ? items : FindMember(schema, "prefixItems");
  return prefix == nullptr ? 0 : prefix->size();
}

void LowerTo(int64_t value, int64_t* max) { *max = *max == kNoLimit ? value : std::min(*max, value); }

// Whether the atom says that certain values fail.
bool ExcludesValues(const Atom& atom) {
  return atom.facet == Facet::kFails && (atom.name == "const" || atom.name == "enum");
}

}  // namespace

void KeyPatterns::Add(RegexId pattern) {
  if (std::find(all_.begin(), all_.end(), pattern) == all_.end()) all_.push_back(pattern);
}

bool KeyPatterns::Has(uint32_t subset, RegexId pattern) const {
  const auto found = std::find(all_.begin(), all_.end(), pattern);
  return found != all_.end() && (subset >> (found - all_.begin()) & 1) != 0;
}

RegexId KeyPatterns::ClassOf(uint32_t subset, RegexArena* arena) const {
  std::vector<RegexId> parts;
  for (const RegexId pattern : all_) parts.push_back(Has(subset, pattern) ? pattern : arena->Not(pattern));
  return arena->And(std::move(parts));
}

absl::StatusOr<std::vector<Case>> CaseBuilder::Build(ConjunctionId id) {
  std::vector<Case> out;
  if (id == Conjunctions::kNothing) return out;
  const std::vector<Literal> literals = conjunctions_.literals(id);
  ASSIGN_OR_RETURN(const std::vector<AtomSet> sets, expander_.Expand(literals));
  for (const AtomSet& set : sets) {
    RETURN_IF_ERROR(context_.Spend(1 + static_cast<int64_t>(set.atoms.size())));
    ASSIGN_OR_RETURN(Case built, BuildCase(set));
    if (!built.empty()) out.push_back(std::move(built));
  }
  return out;
}

bool CaseBuilder::IsEmpty(const std::vector<Literal>& literals) {
  return IsEmptyAt(conjunctions_.Of(literals), kEmptinessDepth);
}

bool CaseBuilder::IsEmptyAt(ConjunctionId id, int32_t depth) {
  if (id == Conjunctions::kNothing) return true;
  if (const auto known = known_empty_.find(id); known != known_empty_.end()) return known->second;
  if (depth == 0 || checks_ > kEmptinessDepth) return false;
  ++checks_;
  const absl::Cleanup leave = [this] { --checks_; };
  const absl::StatusOr<std::vector<Case>> cases = Build(id);
  if (!cases.ok()) return false;
  const bool empty = std::all_of(cases->begin(), cases->end(), [&](const Case& one) {
    if (one.values || one.has_null || one.has_true || one.has_false || one.number || one.strings)
      return false;
    if (one.array && (one.array->min == 0 || one.array->prefix.empty())) return false;
    if (one.array && !IsEmptyAt(one.array->prefix[0], depth - 1)) return false;
    return !one.object || std::any_of(one.object->members.begin(), one.object->members.end(),
                                      [&](const ObjectPart::Member& member) {
                                        return member.required && IsEmptyAt(member.value, depth - 1);
                                      });
  });
  known_empty_.emplace(id, empty);
  return empty;
}

absl::StatusOr<Case> CaseBuilder::BuildCase(const AtomSet& set) {
  Case out;
  out.node = set.atoms.empty() ? nullptr : set.atoms[0].node;
  for (const Atom& atom : set.atoms) {
    const SchemaJson* constant = Holding(atom, "const");
    const SchemaJson* values = Holding(atom, "enum");
    if (constant == nullptr && values == nullptr) continue;
    out.values.emplace();
    if (constant != nullptr) out.values->push_back(*constant);
    if (constant == nullptr) out.values->assign(values->begin(), values->end());
    RETURN_IF_ERROR(FilterValues(set, &*out.values));
    return out;
  }
  if ((set.types & kNullType) != 0) {
    ASSIGN_OR_RETURN(out.has_null, FulfilsAll(SchemaJson(nullptr), set));
  }
  if ((set.types & kBooleanType) != 0) {
    ASSIGN_OR_RETURN(out.has_true, FulfilsAll(SchemaJson(true), set));
    ASSIGN_OR_RETURN(out.has_false, FulfilsAll(SchemaJson(false), set));
  }
  if ((set.types & kNumberType) != 0) {
    ASSIGN_OR_RETURN(out.number, BuildNumber(set, &context_));
  }
  if ((set.types & kStringType) != 0) {
    ASSIGN_OR_RETURN(out.strings, BuildStrings(set, &context_));
  }
  if ((set.types & kArrayType) != 0) {
    ASSIGN_OR_RETURN(out.array, BuildArray(set));
  }
  if ((set.types & kObjectType) != 0) {
    ASSIGN_OR_RETURN(out.object, BuildObject(set));
  }
  return out;
}

absl::Status CaseBuilder::FilterValues(const AtomSet& set, std::vector<SchemaJson>* values) {
  std::vector<SchemaJson> kept;
  for (SchemaJson& value : *values) {
    ASSIGN_OR_RETURN(const bool fulfils, FulfilsAll(value, set));
    const bool again = std::any_of(kept.begin(), kept.end(),
                                   [&](const SchemaJson& other) { return EqualValues(other, value); });
    RETURN_IF_ERROR(context_.Spend(1 + static_cast<int64_t>(kept.size()) / 16));
    if (fulfils && !again) kept.push_back(std::move(value));
  }
  *values = std::move(kept);
  return absl::OkStatus();
}

absl::StatusOr<bool> CaseBuilder::FulfilsAll(const SchemaJson& value, const AtomSet& set) {
  if ((set.types & TypeOfValue(value)) == 0) return false;
  for (const Atom& atom : set.atoms) {
    ASSIGN_OR_RETURN(const bool fulfils, Fulfils(value, atom));
    if (!fulfils) return false;
  }
  return true;
}

absl::StatusOr<bool> CaseBuilder::Fulfils(const SchemaJson& value, const Atom& atom) {
  const SchemaJson* member = FindMember(value, atom.name);
  switch (atom.facet) {
    case Facet::kHolds:
      return matcher_.Asserts(value, atom.node);
    case Facet::kHas:
      return member != nullptr;
    case Facet::kLacks:
      return value.is_object() && member == nullptr;
    case Facet::kPropertyFails: {
      if (member == nullptr) return false;
      ASSIGN_OR_RETURN(
          const bool matches,
          matcher_.Matches(*member, FindMember(*FindMember(*atom.node, "properties"), atom.name)));
      return !matches;
    }
    case Facet::kFails:
      break;
  }
  const SchemaJson& keyword_value = *FindMember(*atom.node, atom.name);
  if (atom.name == "contains") {
    if (!value.is_array()) return false;
    for (const SchemaJson& item : value) {
      ASSIGN_OR_RETURN(const bool matches, matcher_.Matches(item, &keyword_value));
      if (matches) return false;
    }
    return true;
  }
  SchemaJson alone = SchemaJson::object();
  alone[atom.name] = keyword_value;
  // Draft 4's flags belong to the bound.
  for (const char* flag : {"exclusiveMinimum", "exclusiveMaximum"}) {
    const SchemaJson* given = FindMember(*atom.node, flag);
    if (given != nullptr && given->is_boolean()) alone[flag] = *given;
  }
  ASSIGN_OR_RETURN(const bool holds, matcher_.Asserts(value, &alone));
  return !holds;
}

absl::StatusOr<std::optional<ArrayPart>> CaseBuilder::BuildArray(const AtomSet& set) {
  ArrayPart part;
  size_t length = 0;
  for (const Atom& atom : set.atoms) {
    RETURN_IF_ERROR(BoundItems(atom, &part));
    if (atom.facet == Facet::kHolds) length = std::max(length, PrefixLength(*atom.node));
  }
  for (size_t i = 0; i <= length; ++i) {
    const bool rest = i == length;
    std::vector<Literal> literals;
    for (const Atom& atom : set.atoms) {
      if (atom.facet == Facet::kFails && atom.name == "contains") {
        literals.push_back({FindMember(*atom.node, "contains"), true, atom.origin, atom.origin_keyword});
      }
      if (atom.facet != Facet::kHolds) continue;
      if (const SchemaJson* item = ItemOf(*atom.node, i, rest)) literals.push_back({item});
      const SchemaJson* unevaluated = FindMember(*atom.node, "unevaluatedItems");
      if (unevaluated == nullptr) continue;
      ASSIGN_OR_RETURN(const std::vector<const SchemaJson*> applied,
                       AppliedStatically(atom.node, "unevaluatedItems"));
      const bool evaluated = std::any_of(applied.begin(), applied.end(), [&](const SchemaJson* schema) {
        return (!rest && i < PrefixLength(*schema)) || ItemOf(*schema, i, rest) != nullptr ||
               (schema != atom.node && FindMember(*schema, "unevaluatedItems") != nullptr);
      });
      if (!evaluated) literals.push_back({unevaluated});
    }
    const ConjunctionId id = conjunctions_.Of(std::move(literals));
    rest ? part.rest = id : (part.prefix.push_back(id), id);
  }
  RETURN_IF_ERROR(CheckContains(set, &part));
  RETURN_IF_ERROR(ExcludeValues(set, kArrayType, &part.min));
  if (part.max != kNoLimit && part.min > part.max) return std::nullopt;
  return part;
}

absl::Status CaseBuilder::ExcludeValues(const AtomSet& set, TypeSet type, int64_t* min) {
  for (const Atom& atom : set.atoms) {
    if (!ExcludesValues(atom)) continue;
    const SchemaJson& given = *FindMember(*atom.node, atom.name);
    std::vector<const SchemaJson*> values;
    if (atom.name == "const") values.push_back(&given);
    for (size_t i = 0; atom.name == "enum" && i < given.size(); ++i) values.push_back(&given[i]);
    for (const SchemaJson* value : values) {
      if (TypeOfValue(*value) != type) continue;
      if (value->empty()) {
        *min = std::max<int64_t>(*min, 1);
        continue;
      }
      ASSIGN_OR_RETURN(const bool belongs, FulfilsOthers(*value, set));
      if (!belongs) continue;
      return context_.Refuse(atom.origin, atom.origin_keyword,
                             "single arrays and objects that are not empty cannot be excluded; list the "
                             "allowed values with \"enum\"");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CaseBuilder::FulfilsOthers(const SchemaJson& value, const AtomSet& set) {
  for (const Atom& atom : set.atoms) {
    RETURN_IF_ERROR(context_.Spend());
    if (ExcludesValues(atom)) continue;
    ASSIGN_OR_RETURN(const bool fulfils, Fulfils(value, atom));
    if (!fulfils) return false;
  }
  return true;
}

absl::Status CaseBuilder::BoundItems(const Atom& atom, ArrayPart* part) {
  if (const SchemaJson* min = Holding(atom, "minItems")) part->min = std::max(part->min, CountOf(*min));
  if (const SchemaJson* max = Holding(atom, "maxItems")) LowerTo(CountOf(*max), &part->max);
  if (atom.facet != Facet::kFails) return absl::OkStatus();
  if (atom.name == "maxItems")
    part->min = std::max(part->min, CountOf(*FindMember(*atom.node, "maxItems")) + 1);
  if (atom.name == "minItems") {
    const int64_t count = CountOf(*FindMember(*atom.node, "minItems"));
    LowerTo(std::max<int64_t>(count - 1, 0), &part->max);
    if (count == 0) part->min = 1;  // no array has fewer than 0 items
  }
  return absl::OkStatus();
}

absl::Status CaseBuilder::CheckContains(const AtomSet& set, ArrayPart* part) {
  for (const Atom& atom : set.atoms) {
    const SchemaJson* contains = Holding(atom, "contains");
    if (contains == nullptr) continue;
    const SchemaJson* min = FindMember(*atom.node, "minContains");
    const SchemaJson* max = FindMember(*atom.node, "maxContains");
    const int64_t least = min == nullptr ? 1 : CountOf(*min);
    const ConjunctionId id = conjunctions_.Of({{contains}});
    if (id == Conjunctions::kAnything) {
      part->min = std::max(part->min, least);
      if (max != nullptr) LowerTo(CountOf(*max), &part->max);
    } else if (id == Conjunctions::kNothing) {
      if (least > 0) part->min = std::max<int64_t>(part->min, 1), part->max = 0;
    } else if (least > 0 || max != nullptr) {
      return context_.Refuse(
          atom.node, "contains",
          "the keyword cannot be enforced; describe the items with \"items\" or \"prefixItems\"");
    }
  }
  for (const Atom& atom : set.atoms) {
    const SchemaJson* unique = Holding(atom, "uniqueItems");
    if (unique == nullptr || !unique->get<bool>()) continue;
    if (part->max == 0 || part->max == 1) continue;
    if (part->rest == Conjunctions::kNothing && part->prefix.size() <= 1) continue;
    return context_.Refuse(
        atom.node, "uniqueItems",
        "the keyword cannot be enforced; leave uniqueItems out, or check the items afterwards");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<const SchemaJson*>> CaseBuilder::AppliedStatically(const SchemaJson* node,
                                                                              const char* keyword) {
  std::vector<const SchemaJson*> applied = {node};
  for (size_t i = 0; i < applied.size(); ++i) {
    RETURN_IF_ERROR(context_.Spend());
    RETURN_IF_ERROR(context_.Check(applied[i]));
    if (!applied[i]->is_object()) continue;
    for (const char* other : {"anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "contains"}) {
      if (FindMember(*applied[i], other) == nullptr) continue;
      return context_.Refuse(
          node, keyword,
          absl::StrCat("the keyword is not supported beside \"", other, "\"; put the keyword, or ",
                       "additionalProperties or items, into every branch"));
    }
    if (FindMember(*applied[i], "$ref") != nullptr) {
      ASSIGN_OR_RETURN(const SchemaJson* target, context_.Target(applied[i]));
      if (std::find(applied.begin(), applied.end(), target) == applied.end()) applied.push_back(target);
    }
    if (const SchemaJson* all = FindMember(*applied[i], "allOf")) {
      for (const SchemaJson& schema : *all) applied.push_back(&schema);
    }
  }
  return applied;
}

absl::StatusOr<std::optional<ObjectPart>> CaseBuilder::BuildObject(const AtomSet& set) {
  ObjectPart part;
  RETURN_IF_ERROR(BoundMembers(set, &part));
  RETURN_IF_ERROR(ExcludeValues(set, kObjectType, &part.min));
  RETURN_IF_ERROR(NameMembers(set, &part));
  int64_t required = 0;
  for (ObjectPart::Member& member : part.members) {
    if (member.value != Conjunctions::kNothing) {
      ASSIGN_OR_RETURN(std::vector<Literal> literals, LiteralsOf(set, member.name));
      member.value = conjunctions_.Of(std::move(literals));
    }
    if (member.required && member.value == Conjunctions::kNothing) return std::nullopt;
    if (member.required) ++required;
  }
  part.min = std::max(part.min, required);
  if (part.max != kNoLimit && part.min > part.max) return std::nullopt;
  RETURN_IF_ERROR(BuildOthers(set, &part));
  return part;
}

absl::Status CaseBuilder::BoundMembers(const AtomSet& set, ObjectPart* part) {
  for (const Atom& atom : set.atoms) {
    if (const SchemaJson* min = Holding(atom, "minProperties"))
      part->min = std::max(part->min, CountOf(*min));
    if (const SchemaJson* max = Holding(atom, "maxProperties")) LowerTo(CountOf(*max), &part->max);
    if (atom.facet != Facet::kFails) continue;
    if (atom.name == "maxProperties") {
      part->min = std::max(part->min, CountOf(*FindMember(*atom.node, "maxProperties")) + 1);
    }
    if (atom.name == "minProperties") {
      const int64_t count = CountOf(*FindMember(*atom.node, "minProperties"));
      LowerTo(std::max<int64_t>(count - 1, 0), &part->max);
      if (count == 0) part->min = 1;
    }
  }
  return absl::OkStatus();
}

absl::Status CaseBuilder::NameMembers(const AtomSet& set, ObjectPart* part) {
  absl::flat_hash_map<std::string, size_t> index;
  const auto named = [&](const std::string& name) -> ObjectPart::Member& {
    const auto [found, inserted] = index.emplace(name, part->members.size());
    if (inserted) part->members.push_back({name});
    return part->members[found->second];
  };
  for (const Atom& atom : set.atoms) {
    if (const SchemaJson* properties = Holding(atom, "properties")) {
      for (const auto& member : properties->get_ref<const SchemaJson::object_t&>()) named(member.first);
    }
  }
  for (const Atom& atom : set.atoms) {
    if (const SchemaJson* required = Holding(atom, "required")) {
      for (const SchemaJson& name : *required) named(name.get_ref<const std::string&>()).required = true;
    }
    if (atom.facet == Facet::kHas || atom.facet == Facet::kPropertyFails) named(atom.name).required = true;
    if (atom.facet == Facet::kLacks) named(atom.name).value = Conjunctions::kNothing;
  }
  if (static_cast<int64_t>(part->members.size()) > context_.options().max_keys) {
    return context_.Refuse(set.atoms[0].node, "properties", "too many properties");
  }
  for (const ObjectPart::Member& member : part->members) {
    if (static_cast<int64_t>(member.name.size()) <= context_.options().max_name_bytes) continue;
    return context_.Refuse(set.atoms[0].node, "properties", "the name of a property is too long");
  }
  return context_.Spend(static_cast<int64_t>(part->members.size() * set.atoms.size()));
}

absl::StatusOr<bool> CaseBuilder::Evaluates(const SchemaJson* node, const std::string& name) {
  if (!node->is_object()) return false;
  if (FindMember(*node, "additionalProperties") != nullptr) return true;
  const SchemaJson* properties = FindMember(*node, "properties");
  if (properties != nullptr && context_.Member(properties, name) != nullptr) return true;
  const SchemaJson* patterns = FindMember(*node, "patternProperties");
  if (patterns == nullptr) return false;
  for (const auto& member : patterns->get_ref<const SchemaJson::object_t&>()) {
    ASSIGN_OR_RETURN(const RegexId pattern, context_.Pattern(patterns, member.first, member.first));
    if (context_.arena().Matches(pattern, name)) return true;
  }
  return false;
}

absl::StatusOr<std::vector<Literal>> CaseBuilder::LiteralsOf(const AtomSet& set, const std::string& name) {
  static const SchemaJson* const nothing = new SchemaJson(false);
  std::vector<Literal> literals;
  for (const Atom& atom : set.atoms) {
    if (atom.facet == Facet::kPropertyFails && atom.name == name) {
      const SchemaJson* schema = FindMember(*FindMember(*atom.node, "properties"), name);
      literals.push_back({schema, true, atom.origin, atom.origin_keyword});
    }
    if (atom.facet != Facet::kHolds) continue;
    if (const SchemaJson* names = FindMember(*atom.node, "propertyNames")) {
      ASSIGN_OR_RETURN(const bool allowed, matcher_.Matches(SchemaJson(name), names));
      if (!allowed) literals.push_back({nothing});
    }
    bool evaluated = false;
    const SchemaJson* properties = FindMember(*atom.node, "properties");
    if (const SchemaJson* own = properties == nullptr ? nullptr : context_.Member(properties, name)) {
      literals.push_back({own});
      evaluated = true;
    }
    if (const SchemaJson* patterns = FindMember(*atom.node, "patternProperties")) {
      for (const auto& member : patterns->get_ref<const SchemaJson::object_t&>()) {
        ASSIGN_OR_RETURN(const RegexId pattern, context_.Pattern(patterns, member.first, member.first));
        if (!context_.arena().Matches(pattern, name)) continue;
        literals.push_back({&member.second});
        evaluated = true;
      }
    }
    const SchemaJson* additional = FindMember(*atom.node, "additionalProperties");
    if (!evaluated && additional != nullptr) literals.push_back({additional});
    const SchemaJson* unevaluated = FindMember(*atom.node, "unevaluatedProperties");
    if (unevaluated == nullptr) continue;
    ASSIGN_OR_RETURN(const std::vector<const SchemaJson*> applied,
                     AppliedStatically(atom.node, "unevaluatedProperties"));
    bool anywhere = false;
    for (const SchemaJson* schema : applied) {
      ASSIGN_OR_RETURN(const bool evaluates, Evaluates(schema, name));
      const bool inner = schema != atom.node && FindMember(*schema, "unevaluatedProperties") != nullptr;
      anywhere = anywhere || evaluates || inner;
    }
    if (!anywhere) literals.push_back({unevaluated});
  }
  return literals;
}

absl::StatusOr<RegexId> CaseBuilder::StringsOf(const SchemaJson* schema) {
  static const SchemaJson* const string = new SchemaJson({{"type", "string"}});
  ASSIGN_OR_RETURN(const std::vector<Case> cases, Build(conjunctions_.Of({{string}, {schema}})));
  std::vector<RegexId> languages;
  for (const Case& one : cases) {
    if (one.strings) languages.push_back(*one.strings);
    if (!one.values) continue;
    for (const SchemaJson& value : *one.values) {
      languages.push_back(context_.arena().Literal(value.get_ref<const std::string&>()));
    }
  }
  return context_.arena().Union(std::move(languages));
}

absl::StatusOr<RegexId> CaseBuilder::NamesOf(const AtomSet& set) {
  std::vector<RegexId> languages;
  for (const Atom& atom : set.atoms) {
    const SchemaJson* names = Holding(atom, "propertyNames");
    if (names == nullptr) continue;
    ASSIGN_OR_RETURN(const RegexId language, StringsOf(names));
    languages.push_back(language);
  }
  return context_.arena().And(std::move(languages));
}

absl::Status CaseBuilder::BuildOthers(const AtomSet& set, ObjectPart* part) {
  KeyPatterns patterns;
  for (const Atom& atom : set.atoms) {
    const SchemaJson* given = Holding(atom, "patternProperties");
    if (given == nullptr) continue;
    for (const auto& member : given->get_ref<const SchemaJson::object_t&>()) {
      ASSIGN_OR_RETURN(const RegexId pattern, context_.Pattern(given, member.first, member.first));
      patterns.Add(pattern);
    }
    if (patterns.all().size() > kMaxKeyPatterns) {
      return context_.Refuse(atom.node, "patternProperties",
                             absl::StrCat("more than ", kMaxKeyPatterns, " patterns are not supported"));
    }
  }
  ASSIGN_OR_RETURN(const RegexId names, NamesOf(set));
  // Every subset of the patterns is a class of names, each with a schema of its own; equal schemas are
  // merged.
  std::vector<std::pair<ConjunctionId, std::vector<uint32_t>>> classes;
  const uint32_t subsets = uint32_t{1} << patterns.all().size();
  for (uint32_t subset = 0; subset < subsets; ++subset) {
    ASSIGN_OR_RETURN(const ConjunctionId value, ValueOfClass(set, patterns, subset));
    auto same =
        std::find_if(classes.begin(), classes.end(), [&](const auto& other) { return other.first == value; });
    if (same == classes.end()) same = classes.insert(same, {value, {}});
    same->second.push_back(subset);
  }
  for (const auto& [value, members] : classes) {
    if (value == Conjunctions::kNothing) continue;
    RegexId language = context_.arena().AnyString();
    if (members.size() < subsets) {
      std::vector<RegexId> any;
      for (const uint32_t subset : members) any.push_back(patterns.ClassOf(subset, &context_.arena()));
      language = context_.arena().Union(std::move(any));
    }
    ASSIGN_OR_RETURN(language, WithoutMembers(set, *part, context_.arena().And({language, names})));
    if (language != context_.arena().Nothing()) part->others.push_back({language, value});
  }
  return absl::OkStatus();
}

absl::StatusOr<ConjunctionId> CaseBuilder::ValueOfClass(const AtomSet& set, const KeyPatterns& patterns,
                                                        uint32_t subset) {
  std::vector<Literal> literals;
  for (const Atom& atom : set.atoms) {
    if (atom.facet != Facet::kHolds) continue;
    ASSIGN_OR_RETURN(const bool evaluated, PatternsOfClass(atom.node, patterns, subset, &literals));
    const SchemaJson* additional = FindMember(*atom.node, "additionalProperties");
    if (!evaluated && additional != nullptr) literals.push_back({additional});
    const SchemaJson* unevaluated = FindMember(*atom.node, "unevaluatedProperties");
    if (unevaluated == nullptr) continue;
    ASSIGN_OR_RETURN(const std::vector<const SchemaJson*> applied,
                     AppliedStatically(atom.node, "unevaluatedProperties"));
    bool anywhere = false;
    for (const SchemaJson* schema : applied) {
      if (!schema->is_object()) continue;
      std::vector<Literal> unused;
      ASSIGN_OR_RETURN(const bool matched, PatternsOfClass(schema, patterns, subset, &unused));
      anywhere = anywhere || matched || FindMember(*schema, "additionalProperties") != nullptr ||
                 (schema != atom.node && FindMember(*schema, "unevaluatedProperties") != nullptr);
    }
    if (!anywhere) literals.push_back({unevaluated});
  }
  return conjunctions_.Of(std::move(literals));
}

absl::StatusOr<bool> CaseBuilder::PatternsOfClass(const SchemaJson* node, const KeyPatterns& patterns,
                                                  uint32_t subset, std::vector<Literal>* literals) {
  const SchemaJson* given = FindMember(*node, "patternProperties");
  bool any = false;
  if (given == nullptr) return any;
  for (const auto& member : given->get_ref<const SchemaJson::object_t&>()) {
    ASSIGN_OR_RETURN(const RegexId pattern, context_.Pattern(given, member.first, member.first));
    if (!patterns.Has(subset, pattern)) continue;
    literals->push_back({&member.second});
    any = true;
  }
  return any;
}

absl::StatusOr<RegexId> CaseBuilder::WithoutMembers(const AtomSet& set, const ObjectPart& part,
                                                    RegexId names) {
  std::vector<std::string> members;
  for (const ObjectPart::Member& member : part.members) {
    RETURN_IF_ERROR(context_.Spend());
    if (context_.arena().Matches(names, member.name)) members.push_back(member.name);
  }
  if (!members.empty()) names = context_.arena().And({names, context_.arena().AllBut(members)});
  RETURN_IF_ERROR(context_.Spend(10));
  const absl::StatusOr<RegexId> plain = context_.arena().Plain(names, context_.options().max_regex_states);
  if (plain.ok()) return plain;
  return context_.Refuse(
      set.atoms[0].node, "patternProperties",
      "the patterns of names are too complex in combination with each other and with properties");
}

}  // namespace somnus
