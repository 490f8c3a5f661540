#pragma once
// Parts that the request parsers share. Internal to coordinator/api. Problems are left in the FieldReader.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/field_reader.h"
#include "coordinator/api/openai_request.h"

namespace somnus {

// /v1/completions from its parsed body; what comes by gRPC takes this way too.
GenerateOrError ParseCompletionFields(const nlohmann::json& json, const ServedModel& model,
                                      const ApiLimits& limits);

// 404 for a model that is not served.
std::optional<ApiError> CheckModel(FieldReader* fields, const ServedModel& model);

// Everything but the prompt, the length and logprobs: sampling, stops, streaming, options of the answer.
void ReadCommonFields(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                      GenerateParams* params);

// Applies truncate_prompt_tokens, checks each prompt against the context and settles max_tokens and
// min_tokens. `max_tokens`: as asked for, by `field`; nullopt: to the end of the context.
void FitContext(FieldReader* fields, const ServedModel& model, std::optional<int64_t> max_tokens,
                GenerateParams* params, const char* field = "max_tokens");

// Prompt log-probabilities are as many as the prompts' tokens, times choices and alternatives: all of them
// wait in memory for the answer.
void CheckPromptLogprobs(FieldReader* fields, const ApiLimits& limits, const GenerateParams& params);

// False, without tokenizing, when `text` cannot fit the context whatever its tokens are.
bool MayFitContext(absl::string_view text, const ServedModel& model);

// Messages (and continue_final_message etc.) rendered through the chat template; an error is in `fields`,
// which read `body`. `any_role`: roles that OpenAI does not know are the template's affair.
struct RenderedChat {
  std::string text;
  std::string role;       // who speaks next: the assistant, or on without a generation prompt
  std::string echo_text;  // the last message's text when that role said it
};
RenderedChat RenderChat(absl::string_view body, FieldReader* fields, const ServedModel& model, bool any_role);

std::string NewResponseId(absl::string_view prefix);
uint64_t RandomSeed();

}  // namespace somnus
