#include "coordinator/structured/schema_gate.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/structured/json_values.h"
#include "coordinator/structured/schema_regex.h"
#include "coordinator/structured/schema_regex_parser.h"
#include "coordinator/structured/schema_regex_text.h"
#include "coordinator/structured/schema_source.h"
#include "coordinator/structured/schema_writer.h"

namespace somnus {
namespace {

// GateSchema, which adds the run's work to `work`.
SchemaOrRefusal CountedGateSchema(const SchemaJson& schema, const GateOptions& options, int64_t* work) {
  auto indexed = SchemaSource::Index(schema, options);
  if (auto* refusal = std::get_if<SchemaRefusal>(&indexed)) return *std::move(refusal);
  const auto& source = std::get<std::unique_ptr<SchemaSource>>(indexed);
  GateContext context(*source, options);
  absl::StatusOr<SchemaJson> written = SchemaWriter(&context).Write(&source->root());
  *work += context.work();
  if (!written.ok()) return context.refusal();
  return *std::move(written);
}

// GateRegex, which adds the pattern's terms to `work`.
PatternOrRefusal CountedGateRegex(absl::string_view pattern, const GateOptions& options, int64_t* work) {
  RegexArena arena(options.max_regex_terms);
  const absl::StatusOr<RegexId> language = ParseWholePattern(pattern, options.regex, &arena);
  *work += arena.size();
  if (!language.ok()) return SchemaRefusal{"", "regex", std::string(language.status().message())};
  if (*language == arena.Nothing()) return SchemaRefusal{"", "regex", "the pattern matches nothing"};
  if (*language == arena.Empty()) return std::string("^$");
  absl::StatusOr<std::string> written = PlainPattern(*language, options.max_pattern_bytes, arena);
  if (!written.ok()) return SchemaRefusal{"", "regex", "the pattern is too large"};
  return *std::move(written);
}

// Gates the schemas and patterns of a structural tag in place, which share the bounds of one schema: of work,
// and of the text that the gate writes.
class StructuralTagGate {
 public:
  explicit StructuralTagGate(const GateOptions& options) : options_(options) {}

  std::optional<SchemaRefusal> Visit(SchemaJson* value, const std::string& pointer, int32_t depth) {
    if (depth > options_.max_depth)
      return SchemaRefusal{pointer, "", "the structural tag is nested too deeply"};
    if (value->is_array()) return VisitList(value, pointer, depth);
    if (!value->is_object()) return std::nullopt;
    const SchemaJson* type = FindMember(*value, "type");
    const bool is_regex = type != nullptr && *type == "regex";
    for (auto& member : value->get_ref<SchemaJson::object_t&>()) {
      std::string inner = pointer;
      AppendPointerToken(member.first, &inner);
      std::optional<SchemaRefusal> refusal;
      // "schema" in the tags that are written before "format", "json_schema" in formats.
      if (member.first == "json_schema" || member.first == "schema") {
        refusal = GateInPlace(&member.second, inner, depth + 1);
      } else if (is_regex && member.first == "pattern" && member.second.is_string()) {
        refusal = GatePattern(&member.second, inner);
      } else {
        refusal = Visit(&member.second, inner, depth + 1);
      }
      if (refusal) return refusal;
    }
    return std::nullopt;
  }

 private:
  std::optional<SchemaRefusal> VisitList(SchemaJson* list, const std::string& pointer, int32_t depth) {
    for (size_t i = 0; i < list->size(); ++i) {
      if (std::optional<SchemaRefusal> refusal =
              Visit(&(*list)[i], absl::StrCat(pointer, "/", i), depth + 1)) {
        return refusal;
      }
    }
    return std::nullopt;
  }

  std::optional<SchemaRefusal> GateInPlace(SchemaJson* schema, const std::string& pointer, int32_t depth) {
    int64_t work = 0;
    SchemaOrRefusal gated = CountedGateSchema(*schema, Within(options_, depth), &work);
    if (auto* refusal = std::get_if<SchemaRefusal>(&gated)) {
      refusal->pointer = absl::StrCat(pointer, refusal->pointer);
      return *std::move(refusal);
    }
    *schema = std::get<SchemaJson>(std::move(gated));
    return Charge(work, static_cast<int64_t>(schema->dump().size()), pointer);
  }

  std::optional<SchemaRefusal> GatePattern(SchemaJson* pattern, const std::string& pointer) {
    int64_t work = 0;
    PatternOrRefusal gated = CountedGateRegex(pattern->get_ref<const std::string&>(), options_, &work);
    if (auto* refusal = std::get_if<SchemaRefusal>(&gated)) {
      refusal->pointer = pointer;
      return *std::move(refusal);
    }
    *pattern = std::get<std::string>(std::move(gated));
    return Charge(work, static_cast<int64_t>(pattern->get_ref<const std::string&>().size()), pointer);
  }

  // Leaves the rest of the bounds to the schemas and patterns that follow.
  std::optional<SchemaRefusal> Charge(int64_t work, int64_t bytes, const std::string& pointer) {
    options_.max_steps -= work;
    options_.max_output_bytes -= bytes;
    if (options_.max_steps >= 0 && options_.max_output_bytes >= 0) return std::nullopt;
    return SchemaRefusal{pointer, "", "the schemas and patterns up to this one are too large together"};
  }

  GateOptions options_;
};

}  // namespace

SchemaOrRefusal GateSchema(const nlohmann::ordered_json& schema, const GateOptions& options) {
  int64_t work = 0;
  return CountedGateSchema(schema, options, &work);
}

// Commas and brackets are a measure of values.
std::optional<SchemaRefusal> CheckJsonText(absl::string_view text, absl::string_view what,
                                           const GateOptions& options) {
  if (static_cast<int64_t>(text.size()) > options.max_bytes) {
    return SchemaRefusal{"", "", absl::StrCat("the ", what, " has more than ", options.max_bytes, " bytes")};
  }
  int64_t depth = 0;
  int64_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ',' || c == '[' || c == '{') ++values;
    if (depth > options.max_depth) {
      return SchemaRefusal{"", "",
                           absl::StrCat("the ", what, " is nested more than ", options.max_depth, " deep")};
    }
    if (values > 2 * int64_t{options.max_values}) {
      return SchemaRefusal{"", "",
                           absl::StrCat("the ", what, " has more than ", options.max_values, " values")};
    }
  }
  return std::nullopt;
}

SchemaOrRefusal GateSchemaText(absl::string_view text, const GateOptions& options) {
  if (std::optional<SchemaRefusal> refusal = CheckJsonText(text, "schema", options))
    return *std::move(refusal);
  const SchemaJson schema = SchemaJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return SchemaRefusal{"", "", "the schema is not JSON"};
  return GateSchema(schema, options);
}

PatternOrRefusal GateRegex(absl::string_view pattern, const GateOptions& options) {
  int64_t work = 0;
  return CountedGateRegex(pattern, options, &work);
}

SchemaOrRefusal GateStructuralTag(const nlohmann::ordered_json& tag, const GateOptions& options) {
  if (HasMoreValues(tag, options.max_values)) {
    return SchemaRefusal{"", "",
                         absl::StrCat("the structural tag has more than ", options.max_values, " values")};
  }
  SchemaJson gated = tag;
  if (std::optional<SchemaRefusal> refusal = StructuralTagGate(options).Visit(&gated, "", 0))
    return *std::move(refusal);
  return gated;
}

}  // namespace somnus
