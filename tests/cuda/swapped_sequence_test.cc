// A sequence whose blocks go through pinned memory between two steps, in the stream's order.

#include "tests/runner/swapped_sequence.h"

#include "gtest/gtest.h"
#include "tests/cuda/gpu_ranks.h"

namespace somnus::cuda_test {
namespace {

TEST(SwappedSequenceTest, HasTheTokensThatItWouldHaveHad) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 21; ++i) prompt.push_back((11 * i + 3) % 50);
  for (const int world_size : {1, 2}) {
    auto group =
        RankGroup::Load("tests/data/tiny/llama-uneven", world_size, SmallRunnerOptions(), 32, GpuRanks());
    ASSERT_TRUE(group.ok()) << group.status();
    const std::vector<int32_t> expected = SwappedSequence(group->get(), prompt).Generate(8, /*period=*/0);
    ASSERT_EQ(expected.size(), prompt.size() + 8);
    EXPECT_EQ(SwappedSequence(group->get(), prompt).Generate(8, /*period=*/3), expected) << world_size;
  }
}

}  // namespace
}  // namespace somnus::cuda_test
