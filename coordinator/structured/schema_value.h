#pragma once
// Whether a JSON value is an instance of a schema: for the values of enum and const, and the names of
// properties.

#include "absl/status/statusor.h"
#include "coordinator/structured/schema_context.h"

namespace somnus {

class ValueMatcher {
 public:
  explicit ValueMatcher(GateContext* context) : context_(*context) {}

  // All keywords of the schema. Errors: a keyword that is not supported, or a $ref that leads back to the
  // schema.
  absl::StatusOr<bool> Matches(const SchemaJson& value, const SchemaJson* schema) {
    return Matches(value, schema, 0);
  }
  // Only the keywords that restrict instances by themselves: not $ref, allOf, anyOf, oneOf, not, if,
  // dependencies.
  absl::StatusOr<bool> Asserts(const SchemaJson& value, const SchemaJson* schema) {
    return Asserts(value, schema, 0);
  }

 private:
  absl::StatusOr<bool> Matches(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<bool> Asserts(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<bool> Applies(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<int64_t> CountMatches(const SchemaJson& value, const SchemaJson& schemas, int32_t depth);
  absl::StatusOr<bool> Conditional(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<bool> Dependencies(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  bool Number(const SchemaJson& value, const SchemaJson& schema) const;
  absl::StatusOr<bool> String(const SchemaJson& value, const SchemaJson* schema);
  absl::StatusOr<bool> Array(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<bool> Items(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<bool> Contains(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<bool> Object(const SchemaJson& value, const SchemaJson* schema, int32_t depth);
  absl::StatusOr<bool> Property(const std::string& name, const SchemaJson& value, const SchemaJson* schema,
                                int32_t depth);

  GateContext& context_;
};

// Whether `value` is a whole multiple of `divisor`, which is above 0.
bool IsMultiple(const SchemaJson& value, const SchemaJson& divisor);

}  // namespace somnus
