#pragma once
// Comparisons of results that must be the same bit for bit.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/runner/mini_engine.h"

namespace somnus {

inline uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline void ExpectSameLogprobs(const std::vector<v1::StepLogprobs>& a,
                               const std::vector<v1::StepLogprobs>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].token_ids_size(), b[i].token_ids_size());
    EXPECT_EQ(a[i].rank(), b[i].rank());
    for (int j = 0; j < a[i].token_ids_size(); ++j) {
      EXPECT_EQ(a[i].token_ids(j), b[i].token_ids(j));
      ASSERT_EQ(Bits(a[i].logprobs(j)), Bits(b[i].logprobs(j))) << "position " << i << ", entry " << j;
    }
  }
}

inline void ExpectSame(const MiniResult& a, const MiniResult& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  ExpectSameLogprobs(a.logprobs, b.logprobs);
  ExpectSameLogprobs(a.prompt_logprobs, b.prompt_logprobs);
}

}  // namespace somnus
