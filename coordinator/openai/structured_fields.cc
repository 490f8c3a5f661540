#include "coordinator/openai/structured_fields.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "coordinator/http/json_body.h"
#include "coordinator/structured/schema_named_members.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kOneForm[] =
    "structured_outputs must have exactly one of json, regex, choice, grammar, json_object and "
    "structural_tag";
constexpr char kWhitespacePattern[] =
    "structured_outputs.whitespace_pattern must be white space with a count that admits none and one space, "
    "such as \\s*, [ ]? or [\\n ]*: the text then has one space behind commas and colons, and none elsewhere";

// Whether the pattern is " ", \s or a set of white space, with ?, * or {0,N} behind: it fits all white space
// of JSON's compact form, which is none or one space. A client's pattern is read here and run nowhere: what
// an engine of regular expressions takes for it has no useful bound.
bool FitsCompactJson(const Json& value) {
  if (!value.is_string()) return false;
  absl::string_view pattern = value.get_ref<const std::string&>();
  if (absl::ConsumePrefix(&pattern, "[")) {
    const size_t end = pattern.find(']');
    if (end == absl::string_view::npos) return false;
    const std::string set = absl::StrReplaceAll(pattern.substr(0, end),
                                                {{"\\n", "\n"}, {"\\t", "\t"}, {"\\r", "\r"}, {"\\s", " "}});
    if (!absl::StrContains(set, ' ') || set.find_first_not_of(" \n\t\r") != std::string::npos) return false;
    pattern.remove_prefix(end + 1);
  } else if (!absl::ConsumePrefix(&pattern, " ") && !absl::ConsumePrefix(&pattern, "\\s")) {
    return false;
  }
  if (pattern == "?" || pattern == "*") return true;
  int most = 0;
  return absl::ConsumePrefix(&pattern, "{0,") && absl::ConsumeSuffix(&pattern, "}") &&
         (pattern.empty() || (absl::SimpleAtoi(pattern, &most) && most >= 1));
}

// The pointer within a client's list of structures of a pointer within the tag that SetOldTag writes.
std::string PointerInOldTag(absl::string_view pointer) {
  if (!absl::ConsumePrefix(&pointer, "/format/tags/")) return "";
  const absl::string_view index = pointer.substr(0, pointer.find('/'));
  pointer.remove_prefix(index.size());
  const bool is_schema = absl::ConsumePrefix(&pointer, "/content/json_schema");
  return absl::StrCat("/structures/", index, is_schema ? absl::StrCat("/schema", pointer) : "");
}

// The parts of one request that are about its form.
class FormReader {
 public:
  FormReader(FieldReader* fields, absl::string_view body, const GateOptions& gate)
      : fields_(fields), body_(body), gate_(gate) {}

  std::optional<GrammarField> Read() {
    ReadResponseFormat();
    ReadStructured();
    ReadGuided();
    if (!fields_->ok()) return std::nullopt;
    return std::move(form_);
  }

 private:
  // A member of the body, with keys in the order of the body where the body is known.
  OrderedJson InOrder(const char* name) {
    if (body_.empty()) return OrderedJson::parse(fields_->Find(name)->dump());
    // One key more than the gate takes, so that the gate refuses an object that was cut.
    return ParseInOrder(body_, {name}, static_cast<size_t>(gate_.max_keys) + 1)[name];
  }

  void Set(const char* field, GrammarSource source) {
    if (form_.has_value()) {
      fields_->Fail(field, absl::StrCat(field, " and ", form_->field, " exclude each other"));
      return;
    }
    form_ = GrammarField{field, std::move(source)};
  }
  void SetGated(const char* field, GrammarKind kind, const SchemaOrRefusal& gated, JsonLayout layout = {}) {
    if (const auto* refusal = std::get_if<SchemaRefusal>(&gated)) return FailSchema(fields_, *refusal);
    GrammarSource source{.kind = kind, .text = std::get<OrderedJson>(gated).dump(), .layout = layout};
    Set(field, std::move(source));
  }

  // A schema is an object, a boolean, or a string with the schema's text.
  void SetSchema(const char* field, const OrderedJson& schema, JsonLayout layout = {},
                 bool only_named_members = false) {
    SchemaOrRefusal gated = schema.is_string() ? GateSchemaText(schema.get_ref<const std::string&>(), gate_)
                                               : GateSchema(schema, gate_);
    if (only_named_members && std::holds_alternative<OrderedJson>(gated)) {
      const OrderedJson given =
          schema.is_string() ? OrderedJson::parse(schema.get_ref<const std::string&>()) : schema;
      gated = GateSchema(WithNamedMembersOnly(given), gate_);
    }
    SetGated(field, GrammarKind::kJsonSchema, gated, layout);
  }
  void SetRegex(const char* field, const Json& pattern) {
    if (!pattern.is_string()) return fields_->Fail(field, "a regular expression must be a string");
    PatternOrRefusal gated = GateRegex(pattern.get_ref<const std::string&>(), gate_);
    if (const auto* refusal = std::get_if<SchemaRefusal>(&gated))
      return fields_->Fail(field, refusal->message);
    Set(field, {.kind = GrammarKind::kRegex, .text = std::get<std::string>(std::move(gated))});
  }
  void SetChoice(const char* field, const Json& choices) {
    GrammarSource source{.kind = GrammarKind::kChoice};
    if (!choices.is_array() || choices.empty() || choices.size() > static_cast<size_t>(gate_.max_choices)) {
      return fields_->Fail(field,
                           absl::StrCat("choices must be a list of 1 to ", gate_.max_choices, " strings"));
    }
    for (const Json& choice : choices) {
      if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
        return fields_->Fail(field, "choices must be strings that are not empty");
      source.choices.push_back(choice.get<std::string>());
    }
    Set(field, std::move(source));
  }
  void SetEbnf(const char* field, const Json& grammar) {
    if (!grammar.is_string() || grammar.get_ref<const std::string&>().empty())
      return fields_->Fail(field, "a grammar must be a text in EBNF, whose first rule is root");
    Set(field, {.kind = GrammarKind::kEbnf, .text = grammar.get<std::string>()});
  }
  // A refusal of the whole tag names the field.
  void SetGatedTag(const char* field, SchemaOrRefusal gated) {
    if (auto* refusal = std::get_if<SchemaRefusal>(&gated); refusal != nullptr && refusal->pointer.empty())
      refusal->pointer = field;
    SetGated(field, GrammarKind::kStructuralTag, gated);
  }
  // An object, or a string with its text.
  void SetTag(const char* field, const OrderedJson& tag) {
    OrderedJson parsed = tag;
    if (tag.is_string()) {
      const std::string& text = tag.get_ref<const std::string&>();
      if (std::optional<SchemaRefusal> refusal = CheckJsonText(text, "structural tag", gate_))
        return SetGatedTag(field, *std::move(refusal));
      parsed = OrderedJson::parse(text, nullptr, false);
    }
    if (!parsed.is_object()) return fields_->Fail(field, "structural_tag must be an object, as JSON");
    if (parsed.contains("structures")) return SetOldTag(field, std::move(parsed));
    SetGatedTag(field, GateStructuralTag(parsed, gate_));
  }

  // vLLM's first form, {"structures": [{"begin", "schema", "end"}], "triggers": [...]}: text that is free up
  // to a trigger, from where on one of the structures follows. A refusal's pointer is that of the client's
  // form.
  void SetOldTag(const char* field, OrderedJson old) {
    OrderedJson tags = OrderedJson::array();
    OrderedJson& structures = old["structures"];
    if (!structures.is_array() || structures.empty() || !old["triggers"].is_array())
      return fields_->Fail(field, "structural_tag must have lists of structures and of triggers");
    for (OrderedJson& one : structures) {
      if (!one.is_object() || !one.contains("begin") || !one.contains("schema") || !one.contains("end"))
        return fields_->Fail(field, "every structure must have begin, schema and end");
      tags.push_back({{"type", "tag"},
                      {"begin", one["begin"]},
                      {"content", {{"type", "json_schema"}, {"json_schema", std::move(one["schema"])}}},
                      {"end", one["end"]}});
    }
    const OrderedJson tag = {
        {"type", "structural_tag"},
        {"format", {{"type", "triggered_tags"}, {"triggers", old["triggers"]}, {"tags", std::move(tags)}}}};
    SchemaOrRefusal gated = GateStructuralTag(tag, gate_);
    if (auto* refusal = std::get_if<SchemaRefusal>(&gated))
      refusal->pointer = PointerInOldTag(refusal->pointer);
    SetGatedTag(field, std::move(gated));
  }

  void ReadResponseFormat() {
    constexpr char kField[] = "response_format";
    const Json* format = fields_->Find(kField);
    if (format == nullptr) return;
    const Json type = format->is_object() ? format->value("type", Json()) : Json();
    if (type == "text") return;
    if (type == "json_object") {
      // llama.cpp's spelling of a schema.
      if (!format->value("schema", Json()).is_null()) {
        return fields_->Fail(kField,
                             "response_format.schema goes with no json_object: a response_format of type "
                             "json_schema has its schema in json_schema.schema");
      }
      return Set(kField, {.kind = GrammarKind::kJsonObject});
    }
    if (type == "structural_tag") return SetTag(kField, InOrder(kField));
    if (type != "json_schema") {
      return fields_->Fail(kField,
                           "response_format.type must be text, json_object, json_schema or structural_tag");
    }
    const OrderedJson ordered = InOrder(kField);
    const auto inner = ordered.find("json_schema");
    if (inner == ordered.end() || !inner->is_object() || !inner->contains("schema"))
      return fields_->Fail(kField, "response_format.json_schema.schema is missing");
    if (const OrderedJson strict = inner->value("strict", OrderedJson());
        !strict.is_null() && !strict.is_boolean())
      return fields_->Fail(kField, "response_format.json_schema.strict must be true or false");
    const OrderedJson& schema = (*inner)["schema"];
    if (!schema.is_object() && !schema.is_boolean())
      return fields_->Fail(kField, "response_format.json_schema.schema must be an object or a boolean");
    SetSchema(kField, schema);
  }

  void ReadStructured() {
    constexpr char kField[] = "structured_outputs";
    const Json* given = fields_->Find(kField);
    if (given == nullptr) return;
    if (!given->is_object()) return fields_->Fail(kField, kOneForm);
    JsonLayout layout;
    bool only_named_members = false;
    std::vector<std::string> forms;
    for (const auto& [key, value] : given->items()) {
      if (value.is_null() || value == false) continue;
      if (key == "disable_any_whitespace") {
        layout.any_whitespace = false;
      } else if (key == "whitespace_pattern") {
        if (!FitsCompactJson(value)) return fields_->Fail(kField, kWhitespacePattern);
        layout.any_whitespace = false;
      } else if (key == "disable_additional_properties") {
        only_named_members = true;
      } else if (key == "json" || key == "regex" || key == "choice" || key == "grammar" ||
                 key == "json_object" || key == "structural_tag") {
        forms.push_back(key);
      } else if (!key.starts_with('_')) {  // vLLM's own notes
        return fields_->Fail(kField, absl::StrCat("structured_outputs.", key, " is not supported"));
      }
    }
    if (forms.size() != 1) return fields_->Fail(kField, kOneForm);
    SetForm(kField, forms[0], *given, layout, only_named_members);
  }

  void SetForm(const char* field, const std::string& form, const Json& given, JsonLayout layout,
               bool only_named_members) {
    if (form == "json") return SetSchema(field, InOrder(field)["json"], layout, only_named_members);
    if (form == "regex") return SetRegex(field, given["regex"]);
    if (form == "choice") return SetChoice(field, given["choice"]);
    if (form == "grammar") return SetEbnf(field, given["grammar"]);
    if (form == "structural_tag") return SetTag(field, InOrder(field)["structural_tag"]);
    Set(field, {.kind = GrammarKind::kJsonObject, .layout = layout});
  }

  void ReadGuided() {
    if (fields_->Find("guided_json") != nullptr) SetSchema("guided_json", InOrder("guided_json"));
    if (const Json* regex = fields_->Find("guided_regex")) SetRegex("guided_regex", *regex);
    if (const Json* choice = fields_->Find("guided_choice")) SetChoice("guided_choice", *choice);
    if (const Json* grammar = fields_->Find("guided_grammar")) SetEbnf("guided_grammar", *grammar);
  }

  FieldReader* const fields_;
  const absl::string_view body_;
  const GateOptions& gate_;
  std::optional<GrammarField> form_;
};

}  // namespace

void FailSchema(FieldReader* fields, const SchemaRefusal& refusal) {
  ApiError error = BadRequest(refusal.pointer, refusal.message);
  error.code = std::string(kUnsupportedSchema);
  fields->Fail(std::move(error));
}

std::optional<GrammarField> ReadStructuredOutputs(FieldReader* fields, absl::string_view body,
                                                  const GateOptions& gate) {
  return FormReader(fields, body, gate).Read();
}

std::optional<GrammarField> CallsOrForm(FieldReader* fields, const std::string& calls,
                                        const GrammarField& form) {
  OrderedJson own;
  switch (form.source.kind) {
    case GrammarKind::kJsonSchema:
      own = {{"type", "json_schema"}, {"json_schema", OrderedJson::parse(form.source.text)}};
      break;
    case GrammarKind::kJsonObject:
      own = {{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
      break;
    case GrammarKind::kRegex:
      own = {{"type", "regex"}, {"pattern", form.source.text}};
      break;
    case GrammarKind::kStructuralTag:
      own = OrderedJson::parse(form.source.text)["format"];
      break;
    case GrammarKind::kChoice:
    case GrammarKind::kEbnf:
      fields->Fail(form.field, absl::StrCat(form.field, " with choices or a grammar goes with no tools"));
      return std::nullopt;
  }
  const OrderedJson both = {
      {"type", "structural_tag"},
      {"format", {{"type", "or"}, {"elements", {OrderedJson::parse(calls)["format"], std::move(own)}}}}};
  return GrammarField{form.field, {.kind = GrammarKind::kStructuralTag, .text = both.dump()}};
}

}  // namespace somnus
