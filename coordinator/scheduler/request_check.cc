#include "coordinator/scheduler/request_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/beams.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {
namespace {

// Checks how much a sequence that grows to `num_tokens` tokens adds to a step's messages.
absl::Status CheckMessageSize(const SchedulerOptions& options, const SamplingParams& sampling,
                              int64_t num_tokens) {
  if (std::max(sampling.num_logprobs, sampling.num_prompt_logprobs) > kMaxStepLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs: at most ", kMaxStepLogprobs, " alternatives can be had"));
  }
  const int64_t tokens = NewSequenceBytes(num_tokens, options.blocks.block_size);
  const int64_t parameters = StepSamplingBytes(sampling);
  if (tokens + parameters <= options.max_sequence_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      tokens > parameters ? "prompt" : LargestSamplingField(sampling), ": the request takes up to ",
      tokens + parameters, " bytes of a step, of which one sequence has ", options.max_sequence_bytes));
}

}  // namespace

absl::Status CheckRequest(const SchedulerOptions& options, const EngineRequest& request) {
  const int64_t prompt_len = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = std::max(0, request.max_tokens);
  if (prompt_len == 0) return absl::InvalidArgumentError("prompt: must have at least one token");
  if (prompt_len + std::min<int64_t>(max_tokens, 1) > options.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: has ", prompt_len, " tokens, which leaves no room for output in max_model_len (",
        options.max_model_len, ")"));
  }
  const int64_t longest = std::min<int64_t>(prompt_len + max_tokens, options.max_model_len);
  const int64_t total = TotalBlocks(options.blocks.num_blocks), capacity = total * options.blocks.block_size;
  if (TableSize(BlockOptionsOf(options), longest, /*num_given_back=*/0) > total) {
    return absl::InvalidArgumentError(absl::StrCat("prompt: ", prompt_len, " tokens and max_tokens ",
                                                   max_tokens, " can never fit in the KV cache of ", capacity,
                                                   " tokens"));
  }
  if (request.sampling->beam_search.has_value()) RETURN_IF_ERROR(Beams::Check(options, request));
  return CheckMessageSize(options, *request.sampling, longest);
}

}  // namespace somnus
