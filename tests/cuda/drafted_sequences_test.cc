// Steps with drafts, beside decodes, prompts and graphs: with batch invariance the bits are the same as
// without drafts.

#include "tests/runner/drafted_sequences.h"

#include "gtest/gtest.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/runner/same_bits.h"

namespace somnus::cuda_test {
namespace {

std::vector<MiniRequest> Requests() {
  std::vector<MiniRequest> requests(3);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t j = 0; j < 5 + 9 * i; ++j)
      requests[i].prompt.push_back(static_cast<int32_t>((11 * j + i) % 50));
    requests[i].max_tokens = 14;
  }
  requests[1].sampling.set_temperature(0.9f);
  requests[1].sampling.set_num_logprobs(2);
  requests[1].seed = 4;
  requests[2].sampling.set_repetition_penalty(1.4f);
  requests[2].sampling.set_frequency_penalty(0.4f);
  return requests;
}

absl::StatusOr<RankDevice> MakeInvariantRank(int rank) {
  ASSIGN_OR_RETURN(RankDevice made, GpuRanks()(rank));
  made.device->SetBatchInvariant(true);
  return made;
}

TEST(DraftedSequencesTest, HaveTheTokensThatTheyWouldHaveHad) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int world_size : {1, 2}) {
    auto group =
        RankGroup::Load("tests/data/tiny/qwen3", world_size, SmallRunnerOptions(), 64, MakeInvariantRank);
    ASSERT_TRUE(group.ok()) << group.status();
    const auto wanted = RunAll(**group, Requests(), {.num_blocks = 64});
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    DraftedSequences drafted(group->get(), Requests(), *wanted, /*seed=*/1);
    const std::vector<MiniResult> results = drafted.Run();
    ASSERT_EQ(results.size(), wanted->size());
    for (size_t i = 0; i < results.size(); ++i) ExpectSame(results[i], (*wanted)[i]);
    EXPECT_GT(drafted.num_accepted(), 3);
    EXPECT_LT(drafted.num_accepted(), drafted.num_drafted());
  }
}

// A draft model that equals the model expects the tokens that the model samples greedily.
TEST(DraftedSequencesTest, HaveThemWithADraftModelToo) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ModelRunnerOptions options = SmallRunnerOptions();
  options.draft_model_path = "tests/data/tiny/qwen3";
  options.num_speculative_tokens = 3;
  for (const int world_size : {1, 2}) {
    auto group = RankGroup::Load("tests/data/tiny/qwen3", world_size, options, 64, MakeInvariantRank);
    ASSERT_TRUE(group.ok()) << group.status();
    const auto wanted = RunAll(**group, Requests(), {.num_blocks = 64});
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    DraftedSequences drafted(group->get(), Requests(), *wanted, /*seed=*/1, options.num_speculative_tokens);
    const std::vector<MiniResult> results = drafted.Run();
    ASSERT_EQ(results.size(), wanted->size());
    for (size_t i = 0; i < results.size(); ++i) ExpectSame(results[i], (*wanted)[i]);
    EXPECT_GT(drafted.num_accepted(), 3);
  }
}

}  // namespace
}  // namespace somnus::cuda_test
