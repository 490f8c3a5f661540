#pragma once
// The sampling parameters of a sequence, as ranks keep a step message's record.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "worker/runner/bad_text_rule.h"

namespace somnus {

// StepSampling, checked. Immutable: slots whose sequences share a record share the object.
struct SlotSampling {
  float temperature = 0;
  float top_p = 1;
  int32_t top_k = 0;
  float min_p = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  int32_t min_tokens = 0;
  int32_t num_logprobs = -1;
  int32_t num_prompt_logprobs = -1;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> suppress_token_ids;
  std::vector<int32_t> allowed_token_ids;
  std::vector<std::vector<int32_t>> bad_words;  // none is empty
  std::vector<BadTextRule> bad_texts;

  bool has_penalties() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

// InvalidArgument when a field is out of range or names a token outside the vocabulary.
absl::StatusOr<std::shared_ptr<const SlotSampling>> ParseSampling(const v1::StepSampling& proto,
                                                                  int32_t vocab_size);

}  // namespace somnus
