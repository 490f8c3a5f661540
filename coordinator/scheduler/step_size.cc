#include "coordinator/scheduler/step_size.h"

#include <algorithm>
#include <utility>

namespace somnus {
namespace {

constexpr int64_t kIdBytes = 5;           // a varint of an int32 that is not negative
constexpr int64_t kAnyIntBytes = 10;      // of any int32
constexpr int64_t kListBytes = 6;         // the tag and length of a packed field or a message
constexpr int64_t kLogitBiasBytes = 13;   // an entry of the map: its tag and length, two tags, id and float
constexpr int64_t kSamplingBytes = 128;   // the fields that are numbers, and the message's own tag and length
constexpr int64_t kSequenceBytes = 128;   // the same of NewSequence and ScheduledSequence, or a SequenceFork
constexpr int64_t kPositionBytes = 24;    // tags and lengths of one StepLogprobs, and the rank
constexpr int64_t kAlternativeBytes = 9;  // an id and a float

int64_t LogitBiasBytes(const SamplingParams& s) {
  return kLogitBiasBytes * static_cast<int64_t>(s.logit_bias.size());
}

int64_t AllowedBytes(const SamplingParams& s) {
  return kListBytes + kIdBytes * static_cast<int64_t>(s.allowed_token_ids.size());
}

// A checkpoint's EOS ids are not checked, so they may be negative.
int64_t SuppressBytes(const SamplingParams& s) {
  if (s.min_tokens <= 0) return 0;
  return kListBytes + kIdBytes * static_cast<int64_t>(s.stop_token_ids.size()) +
         kAnyIntBytes * static_cast<int64_t>(s.eos_token_ids.size());
}

int64_t BadWordsBytes(const SamplingParams& s) {
  int64_t bytes = 0;
  for (const std::vector<int32_t>& word : s.bad_words)
    bytes += 2 * kListBytes + kIdBytes * static_cast<int64_t>(word.size());
  // Each text sends its length, and three numbers for each piece.
  for (const BadText& text : s.bad_texts)
    bytes += 5 * kListBytes + 3 * kIdBytes * static_cast<int64_t>(text.pieces.size());
  return bytes;
}

}  // namespace

int64_t StepSamplingBytes(const SamplingParams& s) {
  return kSamplingBytes + LogitBiasBytes(s) + AllowedBytes(s) + SuppressBytes(s) + BadWordsBytes(s);
}

const char* LargestSamplingField(const SamplingParams& s) {
  const std::pair<int64_t, const char*> fields[] = {{LogitBiasBytes(s), "logit_bias"},
                                                    {AllowedBytes(s), "allowed_token_ids"},
                                                    {SuppressBytes(s), "stop_token_ids"},
                                                    {BadWordsBytes(s), "bad_words"}};
  return std::max_element(std::begin(fields), std::end(fields),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

int64_t NewSequenceBytes(int64_t num_tokens, int32_t block_size) {
  const int64_t num_blocks = num_tokens / block_size + 1;
  return kSequenceBytes + kIdBytes * (num_tokens + num_blocks);
}

int64_t SequenceForkBytes(int64_t num_tokens, int32_t block_size) {
  return kSequenceBytes + kIdBytes * (num_tokens / block_size + 1);
}

int64_t PromptLogprobBytes(int32_t num_prompt_logprobs) {
  return kPositionBytes + kAlternativeBytes * (1 + std::max(0, num_prompt_logprobs));
}

int64_t PooledStateBytes(int64_t width) {
  return 3 * kListBytes + kIdBytes + width * static_cast<int64_t>(sizeof(float));
}

}  // namespace somnus
