#pragma once
// Runs llama.cpp's llama-batched-bench as a child process, for side-by-side numbers.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace somnus {

struct PeerSample {
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
};

// Runs one batch. `binary` is executed directly, never through a shell. Blocks until it has ended. NotFound
// when it cannot be started, Internal when it fails or prints no result.
absl::StatusOr<PeerSample> RunBatchedPeer(const std::string& binary, const std::string& model, int threads,
                                          int32_t batch, int32_t prompt_tokens, int32_t new_tokens);

}  // namespace somnus
