#pragma once
// The least scheduler that can drive a runner: runs a set of requests to the end, with chunks and blocks that
// a test chooses.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/runner/rank_group.h"

namespace somnus {

struct MiniRequest {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 16;
  v1::StepSampling sampling = GreedySampling();
  uint64_t seed = 0;
  v1::StepPooling pooling = v1::STEP_POOLING_NONE;  // otherwise max_tokens is 0
  int32_t adapter_slot = 0;
};

struct MiniResult {
  std::vector<int32_t> tokens;
  std::vector<v1::StepLogprobs> logprobs;         // of tokens, when asked for
  std::vector<v1::StepLogprobs> prompt_logprobs;  // of prompt tokens 1, 2, ...
  std::vector<float> pooled;
  absl::Status error;  // the slot error that ended the request
};

struct MiniOptions {
  int32_t chunk = 1 << 20;  // tokens of one prompt in one step, at most
  uint64_t block_seed = 0;  // 0: blocks in order; else shuffled by this seed
  int32_t max_running = 1 << 20;
  int32_t max_step_tokens = 512;
  int32_t num_blocks = 256;
  int32_t block_size = 16;
  // Schedules every sequence once more after the end, like the overlapped engine.
  bool stale_steps = false;
};

absl::StatusOr<std::vector<MiniResult>> RunAll(RankGroup& group, const std::vector<MiniRequest>& requests,
                                               const MiniOptions& options);

// The tokens of one sequence of at most four blocks, in slot 0, when each step is launched before the reply
// of the previous step is read.
absl::StatusOr<std::vector<int32_t>> RunAhead(ModelRunner& runner, const MiniRequest& request);

}  // namespace somnus
