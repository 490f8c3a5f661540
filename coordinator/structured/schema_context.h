#pragma once
// The state that all steps of a run of the gate share: the source, the bounds and how much of the bounds is
// left, the patterns, and the refusal, once there is one. One run, one thread.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/structured/schema_gate.h"
#include "coordinator/structured/schema_keywords.h"
#include "coordinator/structured/schema_regex.h"
#include "coordinator/structured/schema_source.h"

namespace somnus {

// The JSON types, with numbers split into whole ones and others.
using TypeSet = uint8_t;
inline constexpr TypeSet kNullType = 1;
inline constexpr TypeSet kBooleanType = 2;
inline constexpr TypeSet kWholeType = 4;
inline constexpr TypeSet kFractionType = 8;
inline constexpr TypeSet kNumberType = kWholeType | kFractionType;
inline constexpr TypeSet kStringType = 16;
inline constexpr TypeSet kArrayType = 32;
inline constexpr TypeSet kObjectType = 64;
inline constexpr TypeSet kAllTypes = 127;

TypeSet TypeOfValue(const SchemaJson& value);
// `type`: the keyword's value, of the right shape.
TypeSet TypesOf(const SchemaJson& type);

// Exact for all numbers of JSON that nlohmann holds.
long double NumberOf(const SchemaJson& number);
// A count's value, at most 2^31 - 1.
int64_t CountOf(const SchemaJson& count);
// Equality as JSON Schema has it: 1 is 1.0, and the order of keys does not matter.
bool EqualValues(const SchemaJson& a, const SchemaJson& b);

class GateContext {
 public:
  GateContext(const SchemaSource& source, const GateOptions& options)
      : options_(options), source_(source), arena_(options.max_regex_terms), steps_left_(options.max_steps) {}

  const GateOptions& options() const { return options_; }
  const SchemaSource& source() const { return source_; }
  RegexArena& arena() { return arena_; }
  const SchemaRefusal& refusal() const { return refusal_; }

  // Notes why the schema is refused and returns an error. A later refusal replaces an earlier one.
  absl::Status Refuse(const SchemaJson* node, absl::string_view keyword, absl::string_view message);
  // ResourceExhausted once the run's work exceeds the bound.
  absl::Status Spend(int64_t steps = 1);
  // The run's work so far, in steps: those that were spent, and one for each term of a pattern.
  int64_t work() const { return options_.max_steps - steps_left_ + arena_.size(); }

  // Refuses a schema with a keyword of a wrong shape, or that is not supported at all.
  absl::Status Check(const SchemaJson* node);
  // Refuses a schema that applies itself to the same instance: by $ref, allOf, anyOf, oneOf, not, if or
  // dependencies.
  absl::Status CheckLoops(const SchemaJson* node);
  // The target of the node's $ref.
  absl::StatusOr<const SchemaJson*> Target(const SchemaJson* node);
  // The schema that `node` stands for where it is nothing but a chain of references; otherwise `node`.
  const SchemaJson* Referred(const SchemaJson* node);
  // The language of a pattern that stands in `keyword` of `node`.
  absl::StatusOr<RegexId> Pattern(const SchemaJson* node, absl::string_view keyword,
                                  const std::string& pattern);
  // The language of the node's format: AnyString for a hint.
  absl::StatusOr<RegexId> Format(const SchemaJson* node);
  // Finds a member of an object with many members quickly; nullptr: none.
  const SchemaJson* Member(const SchemaJson* object, absl::string_view name);

 private:
  absl::Status CheckKeyword(const SchemaJson* node, const std::string& name, const SchemaJson& value);
  absl::StatusOr<std::vector<const SchemaJson*>> AppliedInPlace(const SchemaJson* node);

  const GateOptions& options_;
  const SchemaSource& source_;
  RegexArena arena_;
  int64_t steps_left_;
  SchemaRefusal refusal_;
  absl::flat_hash_set<const SchemaJson*> checked_;
  absl::flat_hash_map<const SchemaJson*, bool> loop_free_;  // false: still being visited
  absl::flat_hash_map<std::string, absl::StatusOr<RegexId>> patterns_;
  absl::flat_hash_map<const SchemaJson*, absl::flat_hash_map<absl::string_view, const SchemaJson*>> members_;
};

}  // namespace somnus
