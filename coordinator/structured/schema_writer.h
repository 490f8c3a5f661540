#pragma once
// Writes the cases of a schema as a schema that xgrammar enforces exactly. One run of the gate, one thread.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/structured/schema_case.h"

namespace somnus {

class SchemaWriter {
 public:
  explicit SchemaWriter(GateContext* context)
      : context_(*context), conjunctions_(context), builder_(context, &conjunctions_) {}

  // The schema equal to `root`.
  absl::StatusOr<SchemaJson> Write(const SchemaJson* root);

 private:
  using Keywords = absl::Span<const absl::string_view>;
  struct Definition {
    std::vector<Case> cases;
    bool fulfillable = false;
    int32_t uses = 0;
    std::string name;  // in "$defs"; empty: none yet
  };

  absl::Status Collect(ConjunctionId root);
  std::vector<ConjunctionId> ChildrenOf(const Case& one) const;
  void FindFulfillable();
  bool IsFulfillable(ConjunctionId id) const;
  bool IsFulfillable(const Case& one) const;
  // How many elements of the array can have a value; kNoLimit: any number.
  int64_t LongestOf(const ArrayPart& part) const;
  bool IsFulfillable(const ObjectPart& part) const;
  void CountUses(ConjunctionId root);

  absl::StatusOr<SchemaJson> Reference(ConjunctionId id, int32_t depth);
  absl::StatusOr<SchemaJson> Inline(ConjunctionId id, int32_t depth);
  absl::Status AddCase(const Case& one, int32_t depth, std::vector<SchemaJson>* parts);
  absl::Status AddValues(const std::vector<SchemaJson>& values, const SchemaJson* node,
                         std::vector<SchemaJson>* parts);
  absl::StatusOr<SchemaJson> WriteValue(const SchemaJson& value, const SchemaJson* node, int32_t depth);
  absl::StatusOr<SchemaJson> WriteList(const SchemaJson& value, const SchemaJson* node, int32_t depth);
  absl::StatusOr<SchemaJson> WriteMembers(const SchemaJson& value, const SchemaJson* node, int32_t depth);
  SchemaJson WriteNumber(const NumberPart& part) const;
  absl::StatusOr<SchemaJson> WriteStrings(RegexId language, const SchemaJson* node, Keywords keywords);
  absl::StatusOr<SchemaJson> WriteArray(const ArrayPart& part, int32_t depth);
  absl::StatusOr<SchemaJson> WriteObject(const ObjectPart& part, const SchemaJson* node, int32_t depth);
  absl::Status WriteOthers(const ObjectPart& part, const SchemaJson* node, int32_t depth, SchemaJson* object);
  absl::Status WriteCounts(const ObjectPart& part, const SchemaJson* node, SchemaJson* object);
  absl::StatusOr<std::string> Pattern(RegexId language, const SchemaJson* node, Keywords keywords);
  // Refuses a schema that is written with too many brackets, or brackets within each other.
  absl::Status CheckSize(const SchemaJson& written);
  // The first of `keywords` that `node` has is the one that asks for the brackets.
  void NoteDepth(int64_t depth, const SchemaJson* node, Keywords keywords);

  GateContext& context_;
  Conjunctions conjunctions_;
  CaseBuilder builder_;
  absl::flat_hash_map<ConjunctionId, Definition> definitions_;
  std::vector<ConjunctionId> order_;     // of the definitions, as they were met
  std::deque<ConjunctionId> unwritten_;  // named, but not written yet
  int32_t names_ = 0;
  // The most brackets within each other of a pattern or a value, its schema, and its keyword there.
  int64_t deepest_ = 0;
  const SchemaJson* deepest_node_ = nullptr;
  absl::string_view deepest_keyword_;  // empty: the schema has none of the keywords
};

}  // namespace somnus
