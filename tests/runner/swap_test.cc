// Sequences whose blocks went through host memory go on as if nothing had happened.

#include <gtest/gtest.h>

#include "tests/runner/swapped_sequence.h"

namespace somnus {
namespace {

TEST(SwapTest, ASwappedSequenceHasTheTokensThatItWouldHaveHad) {
  for (const char* model : {"tests/data/tiny/llama-uneven", "tests/data/tiny/qwen3"}) {
    for (const int world_size : {1, 2}) {
      auto group = RankGroup::Load(model, world_size, SmallRunnerOptions(), 32);
      ASSERT_TRUE(group.ok()) << group.status();
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < 21; ++i) prompt.push_back((11 * i + 3) % 50);
      const std::vector<int32_t> expected = SwappedSequence(group->get(), prompt).Generate(24, /*period=*/0);
      ASSERT_EQ(expected.size(), prompt.size() + 24);
      for (const int period : {1, 3, 7}) {
        EXPECT_EQ(SwappedSequence(group->get(), prompt).Generate(24, period), expected)
            << model << " on " << world_size << " ranks, every " << period;
      }
    }
  }
}

}  // namespace
}  // namespace somnus
