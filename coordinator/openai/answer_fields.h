#pragma once
// The fields of a chat request that say what its answers consist of: tools and tool_choice, reasoning.
// Problems are left in the FieldReader. Internal to coordinator/openai.

#include <optional>

#include "coordinator/openai/field_reader.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/request_fields.h"
#include "text/tools/forced_calls.h"

namespace somnus {

// The tools that an answer may call, and whether it must. Of a request with tool_choice "none", or without
// tools: no tools.
struct ToolChoice {
  std::vector<ToolSpec> tools;
  std::vector<size_t> places;  // of `tools` among the request's tools
  ForcedChoice choice;
  bool is_narrowed = false;  // to some of the request's tools, by tool_choice "allowed_tools"
};

// Reads `tool_choice`, `parallel_tool_calls` and the tools' `strict`. `chat`: with the request's tools.
ToolChoice ReadToolChoice(FieldReader* fields, const ServedModel& model, const RenderedChat& chat);

// Sets how answers are taken apart: `params->answer`, and whether special tokens are text, since markers may
// be special tokens.
// `legacy_functions`: as AnswerFormat says.
void ReadAnswerFormat(FieldReader* fields, const ServedModel& model, const RenderedChat& chat,
                      const ToolChoice& choice, bool legacy_functions, GenerateParams* params);

// The marks around the reasoning before an answer, without a budget. Nullopt: the model does not reason.
// `is_open`: the prompt ends inside of reasoning.
std::optional<ReasoningBounds> ReasoningBoundsOf(const ServedModel& model, bool is_open);

// Sets the grammar of the answers, of response_format and its kind and of forced calls, and the bounds of the
// reasoning before. `body`: as ReadStructuredOutputs takes it.
void ReadAnswerGrammar(FieldReader* fields, absl::string_view body, const ServedModel& model,
                       const RenderedChat& chat, const ToolChoice& choice, GenerateParams* params);

}  // namespace somnus
