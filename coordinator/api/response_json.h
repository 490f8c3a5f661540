#pragma once
// The JSON of a response's parts, for streams and whole responses: head, usage, token ids, log-probabilities.
// Internal to coordinator/api. All functions append to `out`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/openai_request.h"
#include "coordinator/api/openai_response.h"

namespace somnus {

const char* FinishReasonName(FinishReason reason);

// `"id":...,"object":...,"created":...,"model":...`
void AppendHead(const GenerateParams& params, const std::string& model, const char* object, int64_t created,
                std::string* out);
void AppendUsage(const UsageCounts& usage, std::string* out);
void AppendIds(const std::vector<int32_t>& ids, std::string* out);
// A stop string, a token's id or null.
void AppendStopReason(const OutputDelta& delta, std::string* out);

// Completions' parallel arrays, growing. text_offset counts characters from the start of the choice's text.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const GenerateParams& params, const Tokenizer& tokenizer)
      : params_(params), tokenizer_(tokenizer) {}
  // A token without log-probabilities (the first of a prompt).
  void AddBare(int32_t id);
  void Add(const Logprobs& logprobs);
  // Writes the object of what came since the last call, and forgets it; offsets go on.
  void Write(std::string* out);

 private:
  std::string Name(int32_t id) const;
  void Append(int32_t id, std::optional<float> logprob, const std::string& top);

  const GenerateParams& params_;
  const Tokenizer& tokenizer_;
  std::string tokens_, token_logprobs_, top_logprobs_, offsets_;
  int64_t offset_ = 0;
};

// One entry of chat's logprobs.content.
void AppendChatLogprob(const GenerateParams& params, const Tokenizer& tokenizer, const Logprobs& logprobs,
                       std::string* out);
// vLLM's prompt_logprobs: [null, {"17": {"logprob", "rank", "decoded_token"}, ...}, ...].
void AppendPromptLogprobs(const Tokenizer& tokenizer, const std::vector<Logprobs>& positions,
                          std::string* out);

}  // namespace somnus
