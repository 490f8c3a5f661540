#pragma once
// Writes the JSON of a response's parts, for streams and whole responses: head, usage, token ids,
// log-probabilities. All functions append to `out`. Internal to coordinator/openai.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/openai_response.h"

namespace somnus {

// An estimate of the JSON bytes of a log-probability with the token, as text or as bytes.
inline constexpr int64_t kLogprobJsonBytes = 80;

const char* FinishReasonName(FinishReason reason);

// Appends `"id":...,"object":...,"created":...,"model":...`.
void AppendHead(const GenerateParams& params, const std::string& model, const char* object, int64_t created,
                std::string* out);
void AppendUsage(const UsageCounts& usage, std::string* out);
void AppendIds(const std::vector<int32_t>& ids, std::string* out);
// Appends a stop string, a token's id or null.
void AppendStopReason(const OutputDelta& delta, std::string* out);

// Which weights computed the tokens of a choice, as vLLM's spans: a name, the index of the first token and
// the index behind the last one. Tokens count from the first token of the choice, also in streams.
class WeightVersionSpans {
 public:
  // The tokens of the delta follow. To be called only where the response tells versions.
  void Add(const OutputDelta& delta);
  // Appends `,"weight_versions":[{"version","start","end"}, ...]`.
  void Write(std::string* out) const;

 private:
  struct Span {
    std::string name;
    int64_t end = 0;
  };
  std::vector<Span> spans_;  // each begins at the end of the one before
};

// The log-probabilities of a completion's choice as growing parallel arrays. text_offset counts characters
// from the start of the choice's text.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const GenerateParams& params, const Tokenizer& tokenizer)
      : params_(params), tokenizer_(tokenizer) {}
  // Adds a token without log-probabilities (the first of a prompt).
  void AddBare(int32_t id);
  void Add(const Logprobs& logprobs);
  // Writes the object of the entries that were added since the last call, and drops the entries; offsets
  // continue.
  void Write(std::string* out);

 private:
  std::string Name(int32_t id) const;
  void Append(int32_t id, std::optional<float> logprob, const std::string& top);

  const GenerateParams& params_;
  const Tokenizer& tokenizer_;
  std::string tokens_, token_logprobs_, top_logprobs_, offsets_;
  int64_t offset_ = 0;
};

// Appends an entry of chat's logprobs.content.
void AppendChatLogprob(const GenerateParams& params, const Tokenizer& tokenizer, const Logprobs& logprobs,
                       std::string* out);
// Appends vLLM's prompt_logprobs: [null, {"17": {"logprob", "rank", "decoded_token"}, ...}, ...].
void AppendPromptLogprobs(const Tokenizer& tokenizer, const std::vector<Logprobs>& positions,
                          std::string* out);

}  // namespace somnus
