#include "coordinator/openai/answer_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/structured/schema_gate.h"
#include "text/tools/call_ids.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Kind = ForcedChoice::Kind;

constexpr char kChoices[] =
    "tool_choice must be \"none\", \"auto\", \"required\", {\"type\": \"function\", \"function\": "
    "{\"name\": ...}} or {\"type\": \"allowed_tools\", \"allowed_tools\": ...}";
constexpr char kAllowedTools[] =
    "tool_choice.allowed_tools must be {\"mode\": \"auto\" or \"required\", \"tools\": [{\"type\": "
    "\"function\", \"function\": {\"name\": ...}}]} with names of tools";

// The name of {"type": "function", "function": {"name": ...}}; nullopt: `choice` is something else.
std::optional<std::string> NamedFunction(const Json& choice) {
  if (!choice.is_object() || choice.value("type", Json("function")) != "function") return std::nullopt;
  const auto function = choice.find("function");
  if (function == choice.end() || !function->is_object()) return std::nullopt;
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) return std::nullopt;
  return name->get<std::string>();
}

// Leaves those tools in `result` that `choice`, {"type": "allowed_tools", ...}, names: the prompt shows all
// tools, so that its beginning stays the same. Returns the choice among them; null after an error.
Json NarrowTools(FieldReader* fields, const Json& choice, ToolChoice* result) {
  const Json allowed = choice.value("allowed_tools", Json());
  const Json mode = allowed.is_object() ? allowed.value("mode", Json("auto")) : Json();
  const Json list = allowed.is_object() ? allowed.value("tools", Json()) : Json();
  const std::vector<ToolSpec> all = std::exchange(result->tools, {});
  absl::flat_hash_map<std::string, size_t> places;  // of the first tool with the name
  for (size_t i = 0; i < all.size(); ++i) places.try_emplace(all[i].name, i);
  std::vector<bool> is_named(all.size());
  for (const Json& one : list) {
    const auto found = places.find(NamedFunction(one).value_or(""));
    if (found == places.end()) fields->Fail("tool_choice", kAllowedTools);
    if (found == places.end()) return nullptr;
    if (is_named[found->second]) continue;
    is_named[found->second] = true;
    result->tools.push_back(all[found->second]);
    result->places.push_back(found->second);
  }
  result->is_narrowed = true;
  if ((mode == "auto" || mode == "required") && !result->tools.empty()) return mode;
  fields->Fail("tool_choice", kAllowedTools);
  return nullptr;
}

// Nullopt: the answer calls no tool, or the choice is refused. `choice`: null where the request has none.
std::optional<ForcedChoice> ReadChoice(FieldReader* fields, const ServedModel& model, const Json* choice,
                                       const std::vector<ToolSpec>& tools) {
  if (choice != nullptr && *choice == "none") return std::nullopt;
  if (tools.empty()) {
    if (choice != nullptr) fields->Fail("tool_choice", "tool_choice needs tools");
    return std::nullopt;
  }
  ForcedChoice forced;
  forced.is_parallel = fields->Bool("parallel_tool_calls").value_or(true);
  if (choice == nullptr || *choice == "auto") {
    if (model.auto_tool_choice) return forced;
    fields->Fail("tool_choice", "this server was started with --enable-auto-tool-choice=false");
    return std::nullopt;
  }
  if (*choice == "required") {
    forced.kind = Kind::kRequired;
    return forced;
  }
  const std::optional<std::string> name = NamedFunction(*choice);
  if (!name.has_value()) {
    fields->Fail("tool_choice", kChoices);
    return std::nullopt;
  }
  if (std::none_of(tools.begin(), tools.end(), [&](const ToolSpec& tool) { return tool.name == *name; })) {
    fields->Fail("tool_choice", "tool_choice names a function that is not among the tools");
    return std::nullopt;
  }
  forced.kind = Kind::kNamed;
  forced.name = *name;
  return forced;
}

// Calls that are forced have the family's form if their arguments are JSON, for which the gate writes
// schemas; else a form that every model can be forced to write.
const ToolFormat* CallFormat(const ServedModel& model, const ToolChoice& choice) {
  if (choice.tools.empty()) return nullptr;
  const ToolFormat* const own = model.turn_format.tools;
  if (choice.choice.kind == Kind::kAuto) return own;
  const bool can_force = own != nullptr && !own->forced.begin.empty() && own->forced.style == "json";
  return can_force ? own : &ForcedJsonFormat();
}

// Whether skip_special_tokens would hide a marker of the format, or a part of a marker.
bool HasSpecialMarkers(const Tokenizer& tokenizer, const TurnFormat& format) {
  if (format.tools != nullptr && format.tools->special_markers) return true;
  const ReasoningFormat* const reasoning = format.reasoning;
  if (reasoning == nullptr) return false;
  const std::vector<AddedToken>& added = tokenizer.data().added_tokens;
  return reasoning->harmony || std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
           return token.special && !token.content.empty() &&
                  (absl::StrContains(reasoning->begin, token.content) ||
                   absl::StrContains(reasoning->end, token.content));
         });
}

// The pointer of a refused keyword within the request's tools, of its pointer within the calls' structural
// tag (ForcedCallsTag), which has the tools as the list `tags`.
std::string PointerInTools(absl::string_view pointer, const ToolChoice& choice) {
  constexpr absl::string_view kTags = "/tags/", kSchema = "/json_schema";
  const size_t schema = pointer.find(kSchema);
  const size_t tags = pointer.substr(0, schema).rfind(kTags);
  size_t index = 0;
  if (schema == absl::string_view::npos || tags == absl::string_view::npos) return "tools";
  const absl::string_view number = pointer.substr(tags + kTags.size());
  if (!absl::SimpleAtoi(number.substr(0, number.find('/')), &index)) return "tools";
  if (choice.choice.kind == Kind::kNamed) {
    while (index < choice.tools.size() && choice.tools[index].name != choice.choice.name) ++index;
  }
  if (index >= choice.places.size()) return "tools";
  return absl::StrCat("/tools/", choice.places[index], "/function/parameters",
                      pointer.substr(schema + kSchema.size()));
}

// The structural tag (JSON text) of the calls; nullopt: the text is free, or an error is in `fields`.
// `as_answer`: the answer is calls alone; else calls of strict tools within free text.
std::optional<std::string> ForcedCalls(FieldReader* fields, const ServedModel& model,
                                       const ToolChoice& choice, const GateOptions& gate, bool as_answer) {
  const ToolFormat* const format = CallFormat(model, choice);
  const bool is_strict =
      std::any_of(choice.tools.begin(), choice.tools.end(), [](const ToolSpec& tool) { return tool.strict; });
  if (format == nullptr || (!as_answer && !is_strict && !choice.is_narrowed)) return std::nullopt;
  if (!format->forced.begin.empty() && format->forced.style != "json") {
    fields->Fail("tools",
                 "strict tools, allowed_tools, and tools beside a form, need calls whose arguments are JSON, "
                 "unlike this "
                 "model's; tool_choice \"required\" or a named function goes");
    return std::nullopt;
  }
  ForcedChoice forced = choice.choice;
  if (as_answer && forced.kind == Kind::kAuto) forced.kind = Kind::kRequired;
  const absl::StatusOr<OrderedJson> tag = ForcedCallsTag(*format, choice.tools, forced);
  if (!tag.ok()) {
    fields->Fail("tools", absl::StrCat("calls of this model cannot be forced into their schemas: ",
                                       tag.status().message()));
    return std::nullopt;
  }
  SchemaOrRefusal gated = GateStructuralTag(*tag, gate);
  if (const auto* refusal = std::get_if<SchemaRefusal>(&gated)) {
    FailSchema(fields, {PointerInTools(refusal->pointer, choice), refusal->keyword,
                        absl::StrCat("tools: ", refusal->message)});
    return std::nullopt;
  }
  return std::get<OrderedJson>(gated).dump();
}

// The text that ends reasoning.
absl::string_view EndOf(const ReasoningFormat& format) {
  return format.harmony ? "<|channel|>final<|message|>" : format.end;
}

// The reasoning that goes before a form, or that has a budget.
std::optional<ReasoningBounds> ReadReasoningBounds(FieldReader* fields, const ServedModel& model,
                                                   const RenderedChat& chat, const GenerateParams& params) {
  const std::optional<int64_t> budget = fields->Int("thinking_token_budget", -1);
  const bool has_budget = budget.value_or(-1) >= 0;
  const bool reasons = params.answer != nullptr && params.answer->format.reasoning != nullptr;
  if (!reasons) {
    if (has_budget)
      fields->Fail("thinking_token_budget", "this model has no reasoning that could be bounded");
    return std::nullopt;
  }
  if (!has_budget && !params.grammar.has_value()) return std::nullopt;
  const ReasoningFormat& format = *params.answer->format.reasoning;
  const bool is_open = params.answer->options.starts_in_reasoning;
  // A template that switches reasoning off closes it in the prompt.
  if (!is_open && absl::EndsWith(absl::StripTrailingAsciiWhitespace(chat.text), EndOf(format)))
    return std::nullopt;
  ReasoningBounds bounds = *ReasoningBoundsOf(model, is_open);
  if (has_budget && bounds.forced_end.empty()) {
    fields->Fail("thinking_token_budget", "the reasoning of this model cannot be ended from outside");
    return std::nullopt;
  }
  if (has_budget) bounds.max_tokens = budget;
  return bounds;
}

}  // namespace

ToolChoice ReadToolChoice(FieldReader* fields, const ServedModel& model, const RenderedChat& chat) {
  ToolChoice result;
  const Json* tools = fields->Find("tools");
  if (tools != nullptr && tools->empty()) fields->Fail("tools", "tools must not be empty");
  result.tools = chat.tools;
  const Json* given = fields->Find("tool_choice");
  Json mode;
  if (given != nullptr && given->is_object() && given->value("type", Json()) == "allowed_tools" &&
      !chat.tools.empty()) {
    mode = NarrowTools(fields, *given, &result);
    if (mode.is_null()) return {};
    given = &mode;
  } else {
    for (size_t i = 0; i < result.tools.size(); ++i) result.places.push_back(i);
  }
  std::optional<ForcedChoice> choice = ReadChoice(fields, model, given, result.tools);
  if (!choice.has_value()) return {};
  result.choice = *std::move(choice);
  return result;
}

void ReadAnswerFormat(FieldReader* fields, const ServedModel& model, const RenderedChat& chat,
                      const ToolChoice& choice, bool legacy_functions, GenerateParams* params) {
  const bool include_reasoning = fields->Bool("include_reasoning").value_or(true);
  if (chat.role != "assistant" || params->sampling.beam_search.has_value()) return;
  auto answer = std::make_shared<AnswerFormat>();
  answer->format = {CallFormat(model, choice), model.turn_format.reasoning};
  if (answer->format.tools == nullptr && answer->format.reasoning == nullptr) return;
  if (answer->format.reasoning != nullptr) {
    answer->options.starts_in_reasoning =
        StartsInReasoning(*answer->format.reasoning, chat.text, /*continues=*/!chat.echo_text.empty());
  }
  if (answer->format.tools != nullptr)
    answer->options.make_id = CallIdMaker(answer->format.tools->ids, chat.earlier_calls);
  const bool has_elements =
      answer->format.tools != nullptr && answer->format.tools->arguments == ArgumentSyntax::kElements;
  answer->schemas = ToolSchemas(choice.tools, has_elements);
  answer->include_reasoning = include_reasoning;
  answer->parallel_tool_calls = choice.choice.is_parallel;
  answer->ends_as_stop = choice.choice.kind == Kind::kNamed;
  answer->only_calls = !choice.tools.empty() && choice.choice.kind != Kind::kAuto;
  answer->legacy_functions = legacy_functions;
  if (fields->Find("skip_special_tokens") == nullptr && HasSpecialMarkers(*model.tokenizer, answer->format))
    params->output.skip_special_tokens = false;
  params->answer = std::move(answer);
}

std::optional<ReasoningBounds> ReasoningBoundsOf(const ServedModel& model, bool is_open) {
  if (model.turn_format.reasoning == nullptr) return std::nullopt;
  const ReasoningFormat& format = *model.turn_format.reasoning;
  return ReasoningBounds{
      .is_open = is_open,
      .begin = model.tokenizer->Encode(format.begin, /*add_special_tokens=*/false),
      .end = std::string(EndOf(format)),
      .forced_end = model.tokenizer->Encode(format.forced_end, /*add_special_tokens=*/false)};
}

void ReadAnswerGrammar(FieldReader* fields, absl::string_view body, const ServedModel& model,
                       const RenderedChat& chat, const ToolChoice& choice, GenerateParams* params) {
  const bool is_auto = choice.choice.kind == Kind::kAuto;
  // An answer in a form may call a tool instead, which then has to be a call from its first token on.
  const bool may_call = is_auto && CallFormat(model, choice) != nullptr;
  std::optional<GrammarField> form =
      ReadStructuredOutputs(fields, body, may_call ? Within(model.gate, kBracketsAroundForm) : model.gate);
  const bool is_either = is_auto && form.has_value();
  const std::optional<std::string> calls =
      ForcedCalls(fields, model, choice, is_either ? Within(model.gate, kBracketsAroundCalls) : model.gate,
                  /*as_answer=*/form.has_value() || !is_auto);
  if (!fields->ok()) return;
  // A response_format is of the answer's text, and a forced call leaves no text: clients send both.
  const bool is_of_text = form.has_value() && form->field == absl::string_view("response_format");
  if (calls.has_value() && form.has_value() && !is_auto && !is_of_text) {
    fields->Fail("tool_choice",
                 absl::StrCat("tool_choice forces a call, and ", form->field, " another form"));
  } else if (calls.has_value() && form.has_value() && is_auto) {
    form = CallsOrForm(fields, *calls, *form);
  } else if (calls.has_value()) {
    form = GrammarField{"tools", {.kind = GrammarKind::kStructuralTag, .text = *calls}};
  }
  params->grammar = std::move(form);
  CheckGrammar(fields, *params);
  params->reasoning = ReadReasoningBounds(fields, model, chat, *params);
}

}  // namespace somnus
