#include "coordinator/openai/answer_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/tools/call_ids.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using Kind = ForcedChoice::Kind;

constexpr char kChoices[] =
    "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": "
    "{\"name\": ...}}";

// The name of {"type": "function", "function": {"name": ...}}; nullopt: `choice` is something else.
std::optional<std::string> NamedFunction(const Json& choice) {
  if (!choice.is_object() || choice.value("type", Json("function")) != "function") return std::nullopt;
  const auto function = choice.find("function");
  if (function == choice.end() || !function->is_object()) return std::nullopt;
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) return std::nullopt;
  return name->get<std::string>();
}

// Nullopt: the answer calls no tool, or the choice is refused.
std::optional<ForcedChoice> ReadChoice(FieldReader* fields, const ServedModel& model,
                                       const std::vector<ToolSpec>& tools) {
  const Json* choice = fields->Find("tool_choice");
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

// Calls that are forced have the family's form, or a form that every model can be forced to write.
const ToolFormat* CallFormat(const ServedModel& model, const ToolChoice& choice) {
  if (choice.tools.empty()) return nullptr;
  const ToolFormat* const own = model.turn_format.tools;
  if (choice.choice.kind == Kind::kAuto) return own;
  return own == nullptr || own->forced.begin.empty() ? &ForcedJsonFormat() : own;
}

// Whether the text of one of the format's markers is a token that skip_special_tokens would hide.
bool HasSpecialMarkers(const Tokenizer& tokenizer, const TurnFormat& format) {
  if (format.tools != nullptr && format.tools->special_markers) return true;
  const ReasoningFormat* const reasoning = format.reasoning;
  if (reasoning == nullptr) return false;
  const std::vector<AddedToken>& added = tokenizer.data().added_tokens;
  return reasoning->harmony || std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
           return token.special && (token.content == reasoning->begin || token.content == reasoning->end);
         });
}

}  // namespace

ToolChoice ReadToolChoice(FieldReader* fields, const ServedModel& model, const RenderedChat& chat) {
  ToolChoice result;
  std::optional<ForcedChoice> choice = ReadChoice(fields, model, chat.tools);
  if (!choice.has_value()) return result;
  result.tools = chat.tools;
  result.choice = *std::move(choice);
  return result;
}

void ReadAnswerFormat(FieldReader* fields, const ServedModel& model, const RenderedChat& chat,
                      const ToolChoice& choice, GenerateParams* params) {
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
  answer->schemas = ToolSchemas(choice.tools);
  answer->include_reasoning = include_reasoning;
  answer->parallel_tool_calls = choice.choice.is_parallel;
  answer->ends_as_stop = choice.choice.kind == Kind::kNamed;
  if (fields->Find("skip_special_tokens") == nullptr && HasSpecialMarkers(*model.tokenizer, answer->format))
    params->output.skip_special_tokens = false;
  params->answer = std::move(answer);
}

std::optional<std::string> ForcedCalls(FieldReader* fields, const ServedModel& model,
                                       const ToolChoice& choice) {
  const bool is_strict =
      std::any_of(choice.tools.begin(), choice.tools.end(), [](const ToolSpec& tool) { return tool.strict; });
  const ToolFormat* const format = CallFormat(model, choice);
  if (format == nullptr || (choice.choice.kind == Kind::kAuto && !is_strict)) return std::nullopt;
  const absl::StatusOr<nlohmann::ordered_json> tag = ForcedCallsTag(*format, choice.tools, choice.choice);
  if (tag.ok()) return tag->dump();
  fields->Fail("tools", absl::IsUnimplemented(tag.status())
                            ? absl::StrCat("strict tools are not supported with the calls of this model: ",
                                           tag.status().message())
                            : std::string(tag.status().message()));
  return std::nullopt;
}

}  // namespace somnus
