#pragma once
// best_of: of each prompt more candidates are computed than the response has choices, and the likeliest
// candidates become the choices: candidates with the greatest sums of log-probabilities over the tokens, the
// likeliest first, and among equals the candidate with the lower index. No output of a prompt comes before
// the prompt's last candidate has ended. Not thread safe.

#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/openai/client_request.h"

namespace somnus {

class BestOf {
 public:
  // 1 <= n <= best_of.
  BestOf(int32_t num_prompts, int32_t n, int32_t best_of);

  // Takes a candidate's output, with index prompt * best_of + candidate; the log-probabilities must be there.
  // Appends the updates that the response has now, with index prompt * n + choice: an error at once, all
  // other updates with the prompt's last candidate.
  void Add(ChoiceUpdate update, std::vector<ChoiceUpdate>* updates);

  // The bytes of text, ids and log-probabilities that wait for other candidates.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  struct Candidate {
    std::vector<OutputDelta> deltas;
    double sum = 0;  // of log-probabilities
    int64_t bytes = 0;
  };

  void Choose(int32_t prompt, std::vector<ChoiceUpdate>* updates);

  const int32_t n_, best_of_;
  std::vector<Candidate> candidates_;
  std::vector<int32_t> open_;  // by prompt: candidates that have not ended
  int64_t held_bytes_ = 0;
};

}  // namespace somnus
