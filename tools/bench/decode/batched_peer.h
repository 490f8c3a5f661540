#pragma once
// Runs llama.cpp's llama-batched-bench as a child process, for side-by-side numbers.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct PeerSample {
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
};

// The flags that ask for flash attention, by the output of `--help`: "-fa on", "-fa 1" or the bare "-fa" of
// older versions; empty where there is no such flag.
std::vector<std::string> FlashAttentionFlags(absl::string_view help);

// One program with one model. Copyable; thread safe. The program is executed directly, never through a shell,
// and each call blocks until the program has ended.
class BatchedPeer {
 public:
  // Asks the program for its flags. NotFound when the program cannot be started, Internal when the program
  // fails.
  static absl::StatusOr<BatchedPeer> Find(const std::string& binary, const std::string& model, int threads);

  // One batch of prompts, with flash attention and a context that has room for the batch. NotFound when the
  // program cannot be started, Internal when the program fails or prints no result.
  absl::StatusOr<PeerSample> Run(int32_t batch, int32_t prompt_tokens, int32_t new_tokens) const;

 private:
  explicit BatchedPeer(std::vector<std::string> command) : command_(std::move(command)) {}

  std::vector<std::string> command_;  // the common part of all runs
};

}  // namespace somnus
