#pragma once
// Parts that the request parsers share. Problems are left in the FieldReader. Internal to the parsers.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/openai/field_reader.h"
#include "coordinator/openai/openai_request.h"
#include "text/tools/tool_schemas.h"

namespace somnus {

// Reads the fields of /v1/completions from the parsed body, or from a gRPC request as JSON. `body`: as
// ReadStructuredOutputs takes it.
GenerateOrError ParseCompletionFields(const nlohmann::json& json, const ServedModel& model,
                                      const ApiLimits& limits, absl::string_view body = "");

// Returns a 400 where the model is served for embeddings alone (--runner=pooling).
std::optional<ApiError> CheckGenerates(const ServedModel& model);

// Returns a 404 for a model that is not served, a 400 for a name that is no string; nullopt: no problem.
std::optional<ApiError> CheckModel(FieldReader* fields, const ServedModel& model);

// Reads everything but the prompt, the length and log-probabilities: sampling, stops, streaming, options of
// the response.
void ReadCommonFields(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                      GenerateParams* params);

// Refuses kOtherServersForms: a text without the form that a client asks for is a text of a wrong kind. An
// empty text asks for nothing.
void RefuseOtherServersForms(FieldReader* fields);

// Reads the request's id, priority, cache_salt and user. `id_prefix`: of the response's id, "cmpl-" for
// example.
void ReadIdentity(FieldReader* fields, const char* id_prefix, GenerateParams* params);

// Makes a beam search of a request that asks for a beam search, once everything else has been read and
// checked. The log-probabilities of the answers wait in memory for the end of the search: a request for more
// than any response could hold is refused.
void ReadBeamSearch(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                    GenerateParams* params);

// Applies truncate_prompt_tokens, checks each prompt against the context and sets max_tokens and min_tokens.
// `max_tokens`: the value of the request's `field`; nullopt: to the end of the context.
void FitContext(FieldReader* fields, const ServedModel& model, std::optional<int64_t> max_tokens,
                GenerateParams* params, const char* field = "max_tokens");

// A grammar goes with no beam search.
void CheckGrammar(FieldReader* fields, const GenerateParams& params);

// Checks the number of prompt log-probabilities: the prompts' tokens times choices and alternatives. All
// log-probabilities wait in memory for the end of the request.
void CheckPromptLogprobs(FieldReader* fields, const ApiLimits& limits, const GenerateParams& params);

// Whether `value` is a list of whole numbers that is not empty.
bool IsIdList(const nlohmann::json& value);

// Returns false, without tokenizing, when `text` cannot fit the context with any tokens.
bool MayFitContext(absl::string_view text, const ServedModel& model);

struct RenderedChat {
  std::string text;
  // The tokens of `text`, where the messages have token ids of earlier turns (prior_turns.h); else empty.
  std::vector<int32_t> ids;
  std::string role;  // of the next message: the assistant, or the last message's without a generation prompt
  std::string echo_text;  // the last message's text when that message has that role
  std::vector<ToolSpec> tools;
  int64_t earlier_calls = 0;  // tool calls among the messages
};
// Renders messages (and continue_final_message etc.) by the chat template; an error is in `fields`, which was
// made from `body`. `any_role`: roles that OpenAI does not have are passed to the template.
// `generation_prompt`: the value of add_generation_prompt where the field is not given.
RenderedChat RenderChat(absl::string_view body, FieldReader* fields, const ServedModel& model, bool any_role,
                        bool generation_prompt = true);

std::string NewResponseId(absl::string_view prefix);
uint64_t RandomSeed();

}  // namespace somnus
