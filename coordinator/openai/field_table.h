#pragma once
// The fields that the bodies of requests may have, route by route: the one place that says their names and
// types. A FieldReader reads no field that its table does not have with that type, and /openapi.json is
// written from the tables (http_server/openapi.h). Immutable; thread safe.

#include <initializer_list>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace somnus {

// The value that a field holds, and how FieldReader reads the value. Numbers may also come as texts that
// spell them, and booleans as words, as pydantic takes both.
enum class FieldType {
  kInteger,
  kNumber,
  kBoolean,
  kString,
  kTokenIds,  // a list of token ids
  kStrings,   // a list of texts
  kTexts,     // a text or a list of texts
  kOther,     // as FieldSpec::schema says; read by Find
};

class FieldTable;

struct FieldSpec {
  const char* name;
  FieldType type;
  // For clients; empty: the field is of another server or route, and is refused unless it changes nothing.
  const char* help;
  // Members of JSON Schema, as JSON text: of kOther all, of other types those beside "type".
  const char* schema = "";
  bool not_null = false;  // null does not count as "not given"
  bool required = false;
  const FieldTable& (*members)() = nullptr;  // of an object whose own fields have a table
};

class FieldTable {
 public:
  // A later spec replaces an earlier one of the same name. Names, texts and schemas are literals.
  FieldTable(std::initializer_list<absl::Span<const FieldSpec>> parts);

  const FieldSpec* Find(absl::string_view name) const;  // null: there is no such field
  const std::vector<FieldSpec>& specs() const { return specs_; }

 private:
  std::vector<FieldSpec> specs_;
  absl::flat_hash_map<absl::string_view, size_t> index_;
};

// The tables of /v1/completions, /v1/chat/completions, /tokenize and /detokenize, /v1/embeddings and
// /pooling.
const FieldTable& CompletionFieldTable();
const FieldTable& ChatFieldTable();
const FieldTable& TokenizeFieldTable();
const FieldTable& DetokenizeFieldTable();
const FieldTable& EmbeddingsFieldTable();
const FieldTable& PoolingFieldTable();

// Fields by which only other servers (llama.cpp, SGLang, TGI) take the form of a text. Every route that
// generates refuses these fields (RefuseOtherServersForms).
inline constexpr const char* kOtherServersForms[] = {"grammar", "json_schema", "ebnf", "regex",
                                                     "structural_tag"};

// The chat route's specs of these fields, for routes that pass the fields on; null counts as "not given".
std::vector<FieldSpec> SameAsChat(absl::Span<const char* const> names);

}  // namespace somnus
