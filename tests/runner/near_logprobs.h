#pragma once
// Comparisons of results that are near each other, of weights that are rounded differently.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/runner/mini_engine.h"

namespace somnus {

// The log-probabilities of the prompt's tokens, which the request must have asked for.
inline std::vector<float> PromptLogprobs(const MiniResult& result) {
  std::vector<float> logprobs;
  for (const v1::StepLogprobs& entry : result.prompt_logprobs) logprobs.push_back(entry.logprobs(0));
  return logprobs;
}

inline double MeanDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += std::fabs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

}  // namespace somnus
