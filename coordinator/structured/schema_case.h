#pragma once
// One case of a schema, type by type: what remains once the keywords of all of the case's atoms are combined.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/structured/schema_cases.h"
#include "coordinator/structured/schema_value.h"

namespace somnus {

struct NumberPart {
  bool whole = false;  // integers alone
  // Bounds of integers, inclusive.
  std::optional<int64_t> least;
  std::optional<int64_t> most;
  // Bounds of other numbers, as the schema wrote the bounds.
  std::optional<SchemaJson> low;
  std::optional<SchemaJson> high;
  bool low_open = false;
  bool high_open = false;
  int64_t multiple_of = 1;  // of integers
};

struct ArrayPart {
  std::vector<ConjunctionId> prefix;
  ConjunctionId rest = Conjunctions::kAnything;
  int64_t min = 0;
  int64_t max = kNoLimit;
};

struct ObjectPart {
  struct Member {
    std::string name;
    ConjunctionId value = Conjunctions::kAnything;  // kNothing: the member must not appear
    bool required = false;
  };
  // Members that are not in `members`, by name.
  struct Others {
    RegexId names;  // AnyString with no members: all names
    ConjunctionId value = Conjunctions::kAnything;
  };
  std::vector<Member> members;  // in the order of the schema
  std::vector<Others> others;
  int64_t min = 0;
  int64_t max = kNoLimit;
};

struct Case {
  // A case of finitely many values has only these.
  std::optional<std::vector<SchemaJson>> values;
  bool has_null = false;
  bool has_true = false;
  bool has_false = false;
  std::optional<NumberPart> number;
  std::optional<RegexId> strings;
  std::optional<ArrayPart> array;
  std::optional<ObjectPart> object;
  // The first of the case's schemas. For messages alone.
  const SchemaJson* node = nullptr;

  bool empty() const {
    return values ? values->empty()
                  : !has_null && !has_true && !has_false && !number && !strings && !array && !object;
  }
};

// The different patterns of an object's names. A subset of the patterns is written in bits.
class KeyPatterns {
 public:
  void Add(RegexId pattern);
  const std::vector<RegexId>& all() const { return all_; }
  bool Has(uint32_t subset, RegexId pattern) const;
  // The names that match the patterns of the subset and no others.
  RegexId ClassOf(uint32_t subset, RegexArena* arena) const;

 private:
  std::vector<RegexId> all_;
};

// The numbers, or the strings, of a case; nullopt: none. Each needs a case whose types have the type.
absl::StatusOr<std::optional<NumberPart>> BuildNumber(const AtomSet& set, GateContext* context);
absl::StatusOr<std::optional<RegexId>> BuildStrings(const AtomSet& set, GateContext* context);

class CaseBuilder : public EmptinessCheck {
 public:
  CaseBuilder(GateContext* context, Conjunctions* conjunctions)
      : context_(*context), conjunctions_(*conjunctions), matcher_(context), expander_(context, this) {}

  // The cases of a conjunction, without cases that are empty for a reason that is seen at once.
  absl::StatusOr<std::vector<Case>> Build(ConjunctionId id);

  bool IsEmpty(const std::vector<Literal>& literals) override;

 private:
  absl::StatusOr<Case> BuildCase(const AtomSet& set);
  absl::Status FilterValues(const AtomSet& set, std::vector<SchemaJson>* values);
  absl::StatusOr<bool> Fulfils(const SchemaJson& value, const Atom& atom);
  absl::StatusOr<bool> FulfilsAll(const SchemaJson& value, const AtomSet& set);
  absl::StatusOr<std::optional<ArrayPart>> BuildArray(const AtomSet& set);
  // Raises `min` to 1 where a negated const or enum has the empty array, or object, as `type` says; refuses
  // other excluded values that the case would have.
  absl::Status ExcludeValues(const AtomSet& set, TypeSet type, int64_t* min);
  // Whether the value fulfils all atoms of the set that do not exclude values by themselves.
  absl::StatusOr<bool> FulfilsOthers(const SchemaJson& value, const AtomSet& set);
  absl::Status BoundItems(const Atom& atom, ArrayPart* part);
  absl::Status CheckContains(const AtomSet& set, ArrayPart* part);
  absl::StatusOr<std::optional<ObjectPart>> BuildObject(const AtomSet& set);
  absl::Status NameMembers(const AtomSet& set, ObjectPart* part);
  absl::Status BoundMembers(const AtomSet& set, ObjectPart* part);
  absl::StatusOr<std::vector<Literal>> LiteralsOf(const AtomSet& set, const std::string& name);
  absl::Status BuildOthers(const AtomSet& set, ObjectPart* part);
  absl::StatusOr<RegexId> NamesOf(const AtomSet& set);
  absl::StatusOr<RegexId> StringsOf(const SchemaJson* schema);
  absl::StatusOr<ConjunctionId> ValueOfClass(const AtomSet& set, const KeyPatterns& patterns,
                                             uint32_t subset);
  absl::StatusOr<bool> PatternsOfClass(const SchemaJson* node, const KeyPatterns& patterns, uint32_t subset,
                                       std::vector<Literal>* literals);
  absl::StatusOr<RegexId> WithoutMembers(const AtomSet& set, const ObjectPart& part, RegexId names);
  absl::StatusOr<std::vector<const SchemaJson*>> AppliedStatically(const SchemaJson* node,
                                                                   const char* keyword);
  absl::StatusOr<bool> Evaluates(const SchemaJson* node, const std::string& name);
  bool IsEmptyAt(ConjunctionId id, int32_t depth);

  GateContext& context_;
  Conjunctions& conjunctions_;
  ValueMatcher matcher_;
  CaseExpander expander_;
  int32_t checks_ = 0;  // emptiness checks in progress, one within the other
  absl::flat_hash_map<ConjunctionId, bool> known_empty_;
};

}  // namespace somnus
