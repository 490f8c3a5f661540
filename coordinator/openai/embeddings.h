#pragma once
// Requests for embeddings (/v1/embeddings, /pooling, InferenceService.Embed), as vLLM has them: the inputs
// become prompts of requests that pool, and the pooled vectors become the response. Thread safe.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/openai_response.h"

namespace somnus {

// The beginning of a response's id.
const char* EmbeddingsIdPrefix(EmbeddingOptions::Api api);

// Reads a body with `input` (a text, a list of texts, a list of token ids, or a list of such lists) or
// `messages`.
GenerateOrError ParseEmbeddingsRequest(absl::string_view body, EmbeddingOptions::Api api,
                                       const ServedModel& model, const ApiLimits& limits);
// The same from fields that are parsed, without messages.
GenerateOrError ParseEmbeddingsFields(const nlohmann::json& json, EmbeddingOptions::Api api,
                                      const ServedModel& model, const ApiLimits& limits);

// Returns the vector that the client gets for the vector that the model gives: cut and normalized as the
// options say.
std::vector<float> FinishEmbedding(const EmbeddingOptions& options, std::vector<float> pooled);

// Appends the numbers as a JSON list; each number is the shortest that is read as the same float.
void AppendNumbers(const std::vector<float>& numbers, std::string* out);
// Returns the numbers as f32, little-endian, in base64.
std::string ToBase64(const std::vector<float>& numbers);

// Writes the response to a request with params.embedding.
std::unique_ptr<ResponseWriter> MakeEmbeddingsWriter(const GenerateParams& params, const ServedModel& model);

}  // namespace somnus
