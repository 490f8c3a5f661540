#pragma once
// Parses the JSON bodies of /v1/completions, /v1/chat/completions, /tokenize and /detokenize (embeddings.h
// has those of embeddings): the result is validated and complete, or an error that names the field.
// Tokenizing takes time, so this is not for an I/O thread. Thread safe.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/answer_format.h"
#include "coordinator/openai/output_processor.h"
#include "coordinator/openai/request_times.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/openai/structured_fields.h"
#include "coordinator/request/request.h"
#include "coordinator/structured/answer_constraint.h"

namespace somnus {

class PrefixClaim;     // prefix_request.h
class ResponseWriter;  // openai_response.h

// The longest id of a request, given in the body or as a header.
constexpr size_t kMaxRequestIdBytes = 1024;

// The options of a request for embeddings.
struct EmbeddingOptions {
  enum class Api { kEmbeddings, kPooling };  // /v1/embeddings, /pooling
  Api api = Api::kEmbeddings;
  Pooling pooling = Pooling::kLast;
  int32_t dimensions = 0;  // of a vector: the first numbers of those that the model gives; 0: all
  bool normalize = true;   // to length 1, after the cut
  bool base64 = false;     // of the numbers as f32, little-endian; else a list of numbers
};

struct GenerateParams {
  bool chat = false;
  std::string response_id;             // "cmpl-..." or "chatcmpl-..."
  const char* request_type = "other";  // for metrics: "chat_completions", "responses" or "other"
  struct Prompt {
    std::vector<int32_t> ids;
    std::string echo_text;  // with echo: the text before the output
    int32_t max_tokens = 0;
  };
  std::vector<Prompt> prompts;
  int32_t n = 1;
  // The number of candidates that are computed of each prompt. The n likeliest are the choices (best_of.h),
  // which needs the log-probabilities of the tokens. Not above n: all computed candidates are choices.
  int32_t best_of = 1;
  SamplingParams sampling;
  uint64_t seed = 0;  // of the first choice of a prompt; choice i has seed + i (but see own_seeds)
  OutputOptions output;
  bool echo = false;
  bool echo_only = false;        // max_tokens 0: the response leaves out the only token that the engine makes
  bool logprobs = false;         // the response has log-probabilities of the tokens
  int32_t num_top_logprobs = 0;  // alternatives per token
  bool prompt_logprobs = false;  // the response has prompt_logprobs
  bool return_token_ids = false;
  bool return_weight_versions = false;  // each choice says which weights computed which tokens
  bool tokens_as_ids = false;           // logprobs name tokens "token_id:17"
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool own_seeds = false;       // the client gave no seed: no two prompts have a seed in common
  int32_t stream_interval = 1;  // tokens per event, except for the first and the last event of a choice
  std::string role;             // chat: the role of the response's message
  // The form that the text must have. GrammarRequest makes the constraint of both before the request is
  // submitted (grammar_request.h).
  std::optional<GrammarField> grammar;
  std::optional<ReasoningBounds> reasoning;  // chat: what goes before the answer; nullopt: nothing is bounded
  std::shared_ptr<const TokenConstraint> constraint;
  std::shared_ptr<const AnswerFormat> answer;  // chat: how answers are taken apart; null: they are content
  bool return_prompt_text = false;
  std::string prompt_text;  // chat, with return_prompt_text: the rendered messages
  int32_t priority = 0;     // lower is served first
  std::string cache_salt;
  std::string user;  // from UserOfField or UserOfKey (api_key.h); empty: nobody is named
  RequestTimes times;
  std::optional<EmbeddingOptions> embedding;  // set: the response has vectors in the place of text
  std::shared_ptr<PrefixClaim> prefix;        // set: the response tells of this pin, and has no output
  // Set: makes the writer of a response in the form of an API that stands on the chat route. Both arguments
  // outlive the writer.
  std::function<std::unique_ptr<ResponseWriter>(const GenerateParams&, const ServedModel&)> make_writer;

  // The number that is computed of each prompt.
  int32_t num_candidates() const { return std::max(n, best_of); }
};

using GenerateOrError = std::variant<GenerateParams, ApiError>;

GenerateOrError ParseCompletionRequest(absl::string_view body, const ServedModel& model,
                                       const ApiLimits& limits);
// `generation_prompt`: the value of add_generation_prompt where the field is not given.
GenerateOrError ParseChatRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits,
                                 bool generation_prompt = true);

// Both return the response's body.
using BodyOrError = std::variant<std::string, ApiError>;
BodyOrError Tokenize(absl::string_view body, const ServedModel& model, const ApiLimits& limits);
BodyOrError Detokenize(absl::string_view body, const ServedModel& model, const ApiLimits& limits);

}  // namespace somnus
