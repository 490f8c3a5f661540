#pragma once
// A conjunction of schemas as a union of cases. All that applies to an instance in place ($ref, allOf, anyOf,
// oneOf, not, if, dependencies) is resolved here: a case holds only atoms, which restrict instances by
// themselves.

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "coordinator/structured/schema_context.h"

namespace somnus {

// A schema that holds, or fails.
struct Literal {
  const SchemaJson* node = nullptr;
  bool fails = false;
  // Where the negation comes from: its schema and keyword. For messages alone.
  const SchemaJson* origin = nullptr;
  const char* origin_keyword = "";

  bool operator==(const Literal& other) const { return node == other.node && fails == other.fails; }
  bool operator<(const Literal& other) const {
    return std::tie(node, fails) < std::tie(other.node, other.fails);
  }
  template <typename H>
  friend H AbslHashValue(H state, const Literal& literal) {
    return H::combine(std::move(state), literal.node, literal.fails);
  }
};

using ConjunctionId = int32_t;

// Numbers sets of literals, so that equal sets are met once.
class Conjunctions {
 public:
  static constexpr ConjunctionId kAnything = 0;
  static constexpr ConjunctionId kNothing = 1;

  explicit Conjunctions(GateContext* context);
  // Literals that say nothing are dropped; a literal that nothing fulfils gives kNothing. A schema that is
  // nothing but a reference stands for the target.
  ConjunctionId Of(std::vector<Literal> literals);
  const std::vector<Literal>& literals(ConjunctionId id) const { return literals_[id]; }
  size_t size() const { return literals_.size(); }

 private:
  std::vector<std::vector<Literal>> literals_;
  absl::flat_hash_map<std::vector<Literal>, ConjunctionId> ids_;
  GateContext& context_;
};

// The statement of an atom about an instance.
enum class Facet {
  kHolds,          // all keywords of the schema that restrict by themselves hold
  kFails,          // the instance is of the keyword's type, and the keyword fails
  kHas,            // an object with the member `name`
  kLacks,          // an object without the member `name`
  kPropertyFails,  // an object with the member `name`, which is no instance of properties[name]
};

struct Atom {
  const SchemaJson* node = nullptr;
  Facet facet = Facet::kHolds;
  std::string name;  // of the keyword (kFails) or the member
  const SchemaJson* origin = nullptr;
  const char* origin_keyword = "";

  bool operator==(const Atom& other) const {
    return node == other.node && facet == other.facet && name == other.name;
  }
  bool operator<(const Atom& other) const {
    return std::tie(node, facet, name) < std::tie(other.node, other.facet, other.name);
  }
  template <typename H>
  friend H AbslHashValue(H state, const Atom& atom) {
    return H::combine(std::move(state), atom.node, atom.facet, atom.name);
  }
};

struct AtomSet {
  std::vector<Atom> atoms;    // in the order of the schema
  TypeSet types = kAllTypes;  // by the atoms' types
};

// Decides whether no instance fulfils all literals; false: there may be one.
class EmptinessCheck {
 public:
  virtual ~EmptinessCheck() = default;
  virtual bool IsEmpty(const std::vector<Literal>& literals) = 0;
};

class CaseExpander {
 public:
  // `emptiness` decides which branches of oneOf exclude each other. Both must outlive the expander.
  CaseExpander(GateContext* context, EmptinessCheck* emptiness)
      : context_(*context), emptiness_(*emptiness) {}

  absl::StatusOr<std::vector<AtomSet>> Expand(const std::vector<Literal>& literals);

 private:
  struct Alternative {
    std::vector<Literal> literals;
    std::vector<Atom> atoms;
  };
  using Choice = std::vector<Alternative>;
  struct Branch {
    std::vector<Literal> pending;  // the next one last
    std::vector<Choice> choices;   // to be taken when nothing is pending
    AtomSet found;
    absl::flat_hash_set<Literal> seen;
    bool empty = false;
  };

  absl::Status Settle(Branch* branch);
  absl::Status Hold(const Literal& literal, Branch* branch);
  absl::Status HoldCondition(const SchemaJson* node, Branch* branch);
  absl::Status HoldOneOf(const SchemaJson* node, Branch* branch);
  void HoldDependencies(const SchemaJson* node, Branch* branch);
  absl::Status Fail(const Literal& literal, Branch* branch);
  absl::Status FailInPlace(const Literal& literal, Choice* choice);
  absl::Status FailKeyword(const Literal& literal, const std::string& keyword, const SchemaJson& value,
                           Choice* choice);
  void AddAtom(Atom atom, Branch* branch);
  bool Asserts(const SchemaJson& node) const;

  GateContext& context_;
  EmptinessCheck& emptiness_;
  absl::flat_hash_map<const SchemaJson*, Choice> one_of_;  // choices that are known
};

}  // namespace somnus
