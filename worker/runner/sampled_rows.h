#pragma once
// The tokens that a step has sampled, and how the reply is made of the tokens.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "proto/worker.pb.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

// Adds an error that ends the sequence in `slot`. The first error of a slot counts.
void AddSlotError(int32_t slot, const absl::Status& error, v1::StepReply* reply);

absl::Status LogitsNotFiniteError();

// Adds a token's log-probability, the token's rank among all tokens, and the likeliest tokens.
void AddLogprobs(int32_t token, float logprob, int32_t rank, absl::Span<const ScoredToken> top,
                 v1::StepLogprobs* out);

// Sampled tokens, in a host buffer of the results block, and which logprobs each row asked for.
struct SampledRows {
  std::vector<LogitRow> rows;
  std::vector<int32_t> num_logprobs;  // per row; -1: none
  int64_t top_stride = 0;
  const int32_t* tokens = nullptr;   // [rows]
  const float* logprobs = nullptr;   // [rows with num_logprobs >= 0, in order]
  const int32_t* ranks = nullptr;    // as logprobs
  const ScoredToken* top = nullptr;  // as logprobs, top_stride each

  // Adds a token or a slot error for each row; of a sequence with a draft the tokens that count.
  void FillReply(v1::StepReply* reply) const;
};

}  // namespace somnus
