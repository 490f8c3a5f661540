#pragma once
// The schema that a client sent, indexed: JSON pointers of its values, and the targets of $ref. Immutable
// after Index(); holds pointers into the client's JSON, which must outlive the source.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "coordinator/structured/schema_gate.h"

namespace somnus {

using SchemaJson = nlohmann::ordered_json;

// Appends "/" and `token`, escaped by RFC 6901.
void AppendPointerToken(absl::string_view token, std::string* pointer);

// The member of an object, or nullptr.
const SchemaJson* FindMember(const SchemaJson& object, absl::string_view name);

class SchemaSource {
 public:
  // Fails for a schema beyond the options' bounds and for draft 3.
  static std::variant<std::unique_ptr<SchemaSource>, SchemaRefusal> Index(const SchemaJson& root,
                                                                          const GateOptions& options);

  const SchemaJson& root() const { return root_; }
  // `value` must be within the root.
  std::string PointerOf(const SchemaJson* value) const;
  // Returns the target of `reference` that stands in the schema `from`, or nullptr where the document lacks
  // the target.
  const SchemaJson* Resolve(const SchemaJson* from, absl::string_view reference) const;
  // Up to draft 7, $ref hides the keywords beside it.
  bool reference_hides_siblings() const { return reference_hides_siblings_; }

 private:
  struct Place {
    const SchemaJson* parent = nullptr;
    std::string key;       // of an object's member
    size_t index = 0;      // of an array's element
    int32_t resource = 0;  // the innermost $id around the value
  };
  struct Resource {
    std::string uri;
    const SchemaJson* root = nullptr;
  };
  struct Pending {
    const SchemaJson* value;
    int32_t depth;
    bool is_schema;
  };

  explicit SchemaSource(const SchemaJson& root) : root_(root) {}
  std::optional<SchemaRefusal> Walk(const GateOptions& options);
  std::optional<SchemaRefusal> ReadDraft();
  std::optional<SchemaRefusal> CheckSizes(const Pending& pending, const GateOptions& options) const;
  void Register(const SchemaJson& schema);
  void Descend(const Pending& pending, std::vector<Pending>* stack);
  const SchemaJson* FollowPointer(const SchemaJson* from, absl::string_view pointer) const;

  const SchemaJson& root_;
  bool reference_hides_siblings_ = false;
  bool id_without_dollar_ = false;  // draft 4
  absl::flat_hash_map<const SchemaJson*, Place> places_;
  std::vector<Resource> resources_;
  absl::flat_hash_map<std::string, int32_t> resource_ids_;
  absl::flat_hash_map<std::string, const SchemaJson*> anchors_;  // "URI#name"
};

}  // namespace somnus
