#include "coordinator/structured/schema_cases.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

bool SaysNothing(const SchemaJson& node) { return node.is_boolean() ? node.get<bool>() : node.empty(); }

// Whether a keyword that applies a schema to members lets every member pass.
bool CannotFail(absl::string_view keyword, const SchemaJson& value) {
  const bool applies = keyword == "items" || keyword == "additionalItems" ||
                       keyword == "additionalProperties" || keyword == "propertyNames" ||
                       keyword == "patternProperties" || keyword == "unevaluatedProperties" ||
                       keyword == "unevaluatedItems";
  return applies && SaysNothing(value);
}

// The types whose instances a keyword restricts.
TypeSet TypesOfKeyword(absl::string_view keyword) {
  static const auto* types = new absl::flat_hash_map<std::string, TypeSet>({
      {"enum", kAllTypes},
      {"const", kAllTypes},
      {"minimum", kNumberType},
      {"maximum", kNumberType},
      {"exclusiveMinimum", kNumberType},
      {"exclusiveMaximum", kNumberType},
      {"minLength", kStringType},
      {"maxLength", kStringType},
      {"pattern", kStringType},
      {"minItems", kArrayType},
      {"maxItems", kArrayType},
      {"contains", kArrayType},
      {"minProperties", kObjectType},
      {"maxProperties", kObjectType},
  });
  const auto found = types->find(keyword);
  return found == types->end() ? 0 : found->second;
}

}  // namespace

Conjunctions::Conjunctions(GateContext* context) : literals_(2), context_(*context) {
  static const SchemaJson* const nothing = new SchemaJson(false);
  literals_[kNothing].push_back({nothing});
  ids_.emplace(std::vector<Literal>(), kAnything);
}

ConjunctionId Conjunctions::Of(std::vector<Literal> literals) {
  std::vector<Literal> kept;
  for (Literal literal : literals) {
    literal.node = context_.Referred(literal.node);
    const bool constant = literal.node->is_boolean() || literal.node->empty();
    if (constant && SaysNothing(*literal.node) == literal.fails) return kNothing;
    if (!constant && std::find(kept.begin(), kept.end(), literal) == kept.end()) kept.push_back(literal);
  }
  std::vector<Literal> key = kept;
  std::sort(key.begin(), key.end());
  const auto [found, inserted] = ids_.emplace(std::move(key), static_cast<ConjunctionId>(literals_.size()));
  if (inserted) literals_.push_back(std::move(kept));
  return found->second;
}

absl::StatusOr<std::vector<AtomSet>> CaseExpander::Expand(const std::vector<Literal>& literals) {
  for (const Literal& literal : literals) RETURN_IF_ERROR(context_.CheckLoops(literal.node));
  std::vector<AtomSet> out;
  absl::flat_hash_set<std::vector<Atom>> known;
  Branch first;
  first.pending.assign(literals.rbegin(), literals.rend());
  std::vector<Branch> stack = {std::move(first)};
  while (!stack.empty()) {
    Branch branch = std::move(stack.back());
    stack.pop_back();
    RETURN_IF_ERROR(Settle(&branch));
    if (branch.empty) continue;
    if (branch.choices.empty()) {
      std::vector<Atom> key = branch.found.atoms;
      std::sort(key.begin(), key.end());
      if (known.insert(std::move(key)).second) out.push_back(std::move(branch.found));
    } else {
      const Choice choice = std::move(branch.choices.back());
      branch.choices.pop_back();
      // The first alternative is taken first.
      for (auto alternative = choice.rbegin(); alternative != choice.rend(); ++alternative) {
        Branch copy = branch;
        for (const Atom& atom : alternative->atoms) AddAtom(atom, &copy);
        copy.pending.assign(alternative->literals.rbegin(), alternative->literals.rend());
        RETURN_IF_ERROR(
            context_.Spend(1 + static_cast<int64_t>(copy.seen.size() + copy.found.atoms.size()) / 8));
        stack.push_back(std::move(copy));
      }
    }
    if (static_cast<int64_t>(out.size() + stack.size()) > context_.options().max_cases) {
      return context_.Refuse(literals[0].node, "",
                             absl::StrCat("alternatives combine to more than ", context_.options().max_cases,
                                          " cases; use fewer anyOf, oneOf, if and not beside each other"));
    }
  }
  return out;
}

absl::Status CaseExpander::Settle(Branch* branch) {
  while (!branch->pending.empty() && !branch->empty) {
    const Literal literal = branch->pending.back();
    branch->pending.pop_back();
    if (!branch->seen.insert(literal).second) continue;
    Literal opposite = literal;
    opposite.fails = !opposite.fails;
    if (branch->seen.contains(opposite)) {
      branch->empty = true;
      break;
    }
    RETURN_IF_ERROR(context_.Check(literal.node));
    if (literal.node->is_boolean() || literal.node->empty()) {
      if (SaysNothing(*literal.node) == literal.fails) branch->empty = true;
    } else if (literal.fails) {
      RETURN_IF_ERROR(Fail(literal, branch));
    } else {
      RETURN_IF_ERROR(Hold(literal, branch));
    }
  }
  return absl::OkStatus();
}

void CaseExpander::AddAtom(Atom atom, Branch* branch) {
  TypeSet types = kAllTypes;
  if (atom.facet == Facet::kHolds) {
    const SchemaJson* type = FindMember(*atom.node, "type");
    if (type != nullptr) types = TypesOf(*type);
  } else if (atom.facet == Facet::kFails) {
    types = atom.name == "type" ? static_cast<TypeSet>(kAllTypes & ~TypesOf(*FindMember(*atom.node, "type")))
                                : TypesOfKeyword(atom.name);
  } else {
    types = kObjectType;
  }
  branch->found.types &= types;
  if (branch->found.types == 0) branch->empty = true;
  if (std::find(branch->found.atoms.begin(), branch->found.atoms.end(), atom) == branch->found.atoms.end()) {
    branch->found.atoms.push_back(std::move(atom));
  }
}

bool CaseExpander::Asserts(const SchemaJson& node) const {
  for (const auto& member : node.get_ref<const SchemaJson::object_t&>()) {
    const Keyword* keyword = FindKeyword(member.first);
    if (keyword != nullptr && keyword->asserts) return true;
  }
  return false;
}

absl::Status CaseExpander::Hold(const Literal& literal, Branch* branch) {
  const SchemaJson* node = literal.node;
  const bool has_reference = FindMember(*node, "$ref") != nullptr;
  const bool only_reference = has_reference && context_.source().reference_hides_siblings();
  std::vector<Literal> next;
  if (has_reference) {
    ASSIGN_OR_RETURN(const SchemaJson* target, context_.Target(node));
    next.push_back({target});
  }
  if (!only_reference) {
    if (Asserts(*node)) AddAtom({node}, branch);
    if (const SchemaJson* all = FindMember(*node, "allOf")) {
      for (const SchemaJson& schema : *all) next.push_back({&schema});
    }
    if (const SchemaJson* negated = FindMember(*node, "not")) next.push_back({negated, true, node, "not"});
    if (const SchemaJson* any = FindMember(*node, "anyOf")) {
      Choice choice;
      for (const SchemaJson& schema : *any) choice.push_back({{{&schema}}, {}});
      branch->choices.push_back(std::move(choice));
    }
    RETURN_IF_ERROR(HoldOneOf(node, branch));
    RETURN_IF_ERROR(HoldCondition(node, branch));
    HoldDependencies(node, branch);
  }
  branch->pending.insert(branch->pending.end(), next.rbegin(), next.rend());
  return absl::OkStatus();
}

absl::Status CaseExpander::HoldOneOf(const SchemaJson* node, Branch* branch) {
  const SchemaJson* one = FindMember(*node, "oneOf");
  if (one == nullptr) return absl::OkStatus();
  auto known = one_of_.find(one);
  if (known == one_of_.end()) {
    const size_t count = one->size();
    Choice choice;
    for (size_t i = 0; i < count; ++i) choice.push_back({{{&(*one)[i]}}, {}});
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = i + 1; j < count; ++j) {
        RETURN_IF_ERROR(context_.Spend());
        if (emptiness_.IsEmpty({{&(*one)[i]}, {&(*one)[j]}})) continue;
        // Instances of both branches belong to neither.
        choice[i].literals.push_back({&(*one)[j], true, node, "oneOf"});
        choice[j].literals.push_back({&(*one)[i], true, node, "oneOf"});
      }
    }
    known = one_of_.emplace(one, std::move(choice)).first;
  }
  branch->choices.push_back(known->second);
  return absl::OkStatus();
}

absl::Status CaseExpander::HoldCondition(const SchemaJson* node, Branch* branch) {
  const SchemaJson* condition = FindMember(*node, "if");
  if (condition == nullptr) return absl::OkStatus();
  const SchemaJson* then = FindMember(*node, "then");
  const SchemaJson* otherwise = FindMember(*node, "else");
  if (then == nullptr && otherwise == nullptr) return absl::OkStatus();
  Alternative holds;
  holds.literals.push_back({condition});
  if (then != nullptr) holds.literals.push_back({then});
  Alternative fails;
  fails.literals.push_back({condition, true, node, "if"});
  if (otherwise != nullptr) fails.literals.push_back({otherwise});
  branch->choices.push_back({std::move(holds), std::move(fails)});
  return absl::OkStatus();
}

void CaseExpander::HoldDependencies(const SchemaJson* node, Branch* branch) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const SchemaJson* dependencies = FindMember(*node, keyword);
    if (dependencies == nullptr) continue;
    for (const auto& member : dependencies->get_ref<const SchemaJson::object_t&>()) {
      static const SchemaJson* const object = new SchemaJson({{"type", "object"}});
      Alternative present;
      if (member.second.is_array()) {
        if (member.second.empty()) continue;
        for (const SchemaJson& name : member.second) {
          present.atoms.push_back({node, Facet::kHas, name.get_ref<const std::string&>(), node, keyword});
        }
      } else {
        present.literals.push_back({&member.second});
      }
      present.atoms.push_back({node, Facet::kHas, member.first, node, keyword});
      Alternative absent;
      absent.atoms.push_back({node, Facet::kLacks, member.first, node, keyword});
      Alternative no_object;
      no_object.literals.push_back({object, true, node, keyword});
      branch->choices.push_back({std::move(present), std::move(absent), std::move(no_object)});
    }
  }
}

absl::Status CaseExpander::Fail(const Literal& literal, Branch* branch) {
  Choice choice;
  RETURN_IF_ERROR(FailInPlace(literal, &choice));
  const bool hidden =
      context_.source().reference_hides_siblings() && FindMember(*literal.node, "$ref") != nullptr;
  if (!hidden) {
    for (const auto& member : literal.node->get_ref<const SchemaJson::object_t&>()) {
      RETURN_IF_ERROR(FailKeyword(literal, member.first, member.second, &choice));
    }
  }
  if (choice.empty()) branch->empty = true;  // the schema has nothing that could fail
  if (choice.size() == 1) {
    for (const Atom& atom : choice[0].atoms) AddAtom(atom, branch);
    branch->pending.insert(branch->pending.end(), choice[0].literals.rbegin(), choice[0].literals.rend());
  } else if (!choice.empty()) {
    branch->choices.push_back(std::move(choice));
  }
  return absl::OkStatus();
}

absl::Status CaseExpander::FailInPlace(const Literal& literal, Choice* choice) {
  const SchemaJson* node = literal.node;
  const auto because = [&](const SchemaJson* schema, bool fails) {
    return Literal{schema, fails, literal.origin, literal.origin_keyword};
  };
  if (FindMember(*node, "$ref") != nullptr) {
    ASSIGN_OR_RETURN(const SchemaJson* target, context_.Target(node));
    choice->push_back({{because(target, true)}, {}});
    if (context_.source().reference_hides_siblings()) return absl::OkStatus();
  }
  if (const SchemaJson* all = FindMember(*node, "allOf")) {
    for (const SchemaJson& schema : *all) choice->push_back({{because(&schema, true)}, {}});
  }
  if (const SchemaJson* any = FindMember(*node, "anyOf")) {
    Alternative none;
    for (const SchemaJson& schema : *any) none.literals.push_back(because(&schema, true));
    choice->push_back(std::move(none));
  }
  if (const SchemaJson* negated = FindMember(*node, "not"))
    choice->push_back({{because(negated, false)}, {}});
  const SchemaJson* condition = FindMember(*node, "if");
  for (const char* keyword : {"then", "else"}) {
    const SchemaJson* branch = FindMember(*node, keyword);
    if (condition == nullptr || branch == nullptr) continue;
    choice->push_back({{because(condition, keyword[0] == 'e'), because(branch, true)}, {}});
  }
  return absl::OkStatus();
}

absl::Status CaseExpander::FailKeyword(const Literal& literal, const std::string& keyword,
                                       const SchemaJson& value, Choice* choice) {
  const SchemaJson* node = literal.node;
  const auto atom = [&](Facet facet, std::string name) {
    return Atom{node, facet, std::move(name), literal.origin, literal.origin_keyword};
  };
  if (keyword == "type" || TypesOfKeyword(keyword) != 0) {
    const bool flag = value.is_boolean() && (keyword == "exclusiveMinimum" || keyword == "exclusiveMaximum");
    const bool counted =
        FindMember(*node, "minContains") != nullptr || FindMember(*node, "maxContains") != nullptr;
    if (!flag && !(keyword == "contains" && counted)) {
      choice->push_back({{}, {atom(Facet::kFails, keyword)}});
      return absl::OkStatus();
    }
    if (flag) return absl::OkStatus();  // part of minimum or maximum
  } else if (keyword == "required") {
    for (const SchemaJson& name : value) {
      choice->push_back({{}, {atom(Facet::kLacks, name.get_ref<const std::string&>())}});
    }
    return absl::OkStatus();
  } else if (keyword == "properties") {
    for (const auto& member : value.get_ref<const SchemaJson::object_t&>()) {
      if (!SaysNothing(member.second)) choice->push_back({{}, {atom(Facet::kPropertyFails, member.first)}});
    }
    return absl::OkStatus();
  } else if (keyword == "uniqueItems" ? !value.get<bool>()
                                      : !value.is_array() && CannotFail(keyword, value)) {
    return absl::OkStatus();
  }
  const Keyword* known = FindKeyword(keyword);
  const bool in_place = keyword == "oneOf" || absl::StartsWith(keyword, "depend");
  if (known == nullptr || (!known->asserts && !in_place)) return absl::OkStatus();
  return context_.Refuse(
      literal.origin, literal.origin_keyword,
      absl::StrCat("branches overlap or are negated, and the opposite of \"", keyword,
                   "\" cannot be enforced; make the branches differ in a required property with "
                   "const values, or leave the keyword out"));
}

}  // namespace somnus
