#pragma once
// Beam search over log-probabilities: which beams go on, which answers there are. Pure: tokens, blocks and
// workers are the caller's.
//
// In each step every beam has the 2 * width likeliest next tokens. Where one of them is an EOS token, the
// beam has ended as an answer, whatever its rank. Of all others the `width` with the best sums of
// log-probabilities go on. After the last step the beams that are left are answers, too. The score of an
// answer is its sum divided by its length, to the power of length_penalty; the prompt counts in the length, a
// last EOS token does not. These are the rules of vLLM's server; early_stopping is transformers'.

#include <cstdint>
#include <vector>

#include "coordinator/request/request.h"

namespace somnus {

class BeamSearch {
 public:
  // Ends after `max_outputs` tokens, at least 1. `params` must outlive it. The prompt is not empty.
  BeamSearch(const BeamSearchParams* params, const std::vector<int32_t>& prompt, int64_t max_outputs,
             BeamState state = {});

  const std::vector<Beam>& live() const { return state_.live; }
  const BeamState& state() const { return state_; }

  // `candidates`: by live beam, the log-probabilities of the chosen token, which does not count, and of the
  // 2 * width likeliest ones. Returns, for each beam that goes on, the live beam that it continues.
  std::vector<int32_t> Advance(const std::vector<Logprobs>& candidates);

  bool done() const;
  // The answers, best first, `width` at most, with their scores. Only when done().
  std::vector<Beam> Answers() const;

 private:
  struct Candidate {
    int32_t source;
    int32_t token;
    double cum_logprob;
  };
  bool IsEos(int32_t token) const;
  double Score(double cum_logprob, int64_t num_outputs, int32_t last_token) const;
  // The best score that a live beam can end with, from now on.
  double BestAttainable() const;
  bool StopsEarly() const;
  Beam Extend(const Candidate& candidate, const Logprobs& from, bool with_token) const;
  void End(const Candidate& candidate, const Logprobs& from);
  static void Insert(Beam beam, size_t most, std::vector<Beam>* sorted);

  const BeamSearchParams* const params_;
  const int64_t prompt_len_;
  const int32_t last_prompt_token_;
  const int64_t max_outputs_;
  BeamState state_;
};

}  // namespace somnus
