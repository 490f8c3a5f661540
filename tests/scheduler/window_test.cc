// Models whose layers all have a window: running sequences give back the blocks that no later query attends.
// The fake worker checks, for every query, that the cache has each token of its window.

#include <gtest/gtest.h>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/fake_drafter.h"
#include "tests/scheduler/reference_beams.h"

namespace somnus {
namespace {

constexpr int32_t kWindow = 10;  // 3 blocks of 4 hold the window

SchedulerOptions WindowOptions(int32_t num_blocks = 64, int32_t reach = kWindow) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.blocks.attention_reach = reach;
  return options;
}

class WindowTest : public testing::TestWithParam<size_t> {
 protected:
  size_t depth() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Depths, WindowTest, testing::Values(0, 1));

void ExpectExact(const std::vector<EngineRequest>& requests, const Harness& harness) {
  for (const EngineRequest& request : requests)
    EXPECT_EQ(harness.answers.at(request.id).tokens, Reference(request)) << request.id;
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
}

// ceil(window / block) + 2 blocks: the window may begin and end within a block, and the next token needs a
// block.
TEST_P(WindowTest, ADecodeHoldsTheBlocksOfItsWindow) {
  for (const bool caching : {false, true}) {
    SchedulerOptions options = WindowOptions();
    options.blocks.enable_prefix_caching = caching;
    Harness harness(options, depth());
    const EngineRequest request = MakeRequest("a", 16, 80);
    harness.Add(request);
    int32_t most = 0;
    for (int i = 0; harness.Step(); ++i) {
      ASSERT_FALSE(HasFatalFailure());
      if (i > 2) most = std::max(most, harness.scheduler.blocks().pool().num_used());
    }
    EXPECT_LE(most, (kWindow + 3) / 4 + 2);
    EXPECT_GE(most, (kWindow + 3) / 4);
    EXPECT_GT(harness.scheduler.stats().given_back_blocks, 15);
    ExpectExact({request}, harness);
  }
}

int32_t AtOnce(const SchedulerOptions& options) {
  return static_cast<int32_t>(WindowBlocks(options.blocks.attention_reach, options.max_num_batched_tokens,
                                           options.blocks.block_size));
}

// A prompt has at no time more blocks than a chunk and the window before the chunk need.
TEST_P(WindowTest, APromptTakesTheBlocksOfItsNextChunkAlone) {
  const SchedulerOptions options = WindowOptions();
  Harness harness(options, depth());
  const EngineRequest request = MakeRequest("a", 90, 3);
  harness.Add(request);
  int32_t most = 0;
  for (int chunk = 1; chunk <= 6; ++chunk) {
    ASSERT_TRUE(harness.Step());
    EXPECT_EQ(harness.steps.back().sequences(0).num_tokens(), chunk < 6 ? 16 : 10);
    most = std::max(most, harness.scheduler.blocks().pool().num_used());
  }
  EXPECT_LE(most, AtOnce(options));
  EXPECT_GE(most, (16 + kWindow) / 4);
  harness.RunToEnd();
  ExpectExact({request}, harness);
}

// The cache holds the window and chunk of a single sequence, and no more.
TEST_P(WindowTest, TheSmallestCacheServesTheLongestSequence) {
  for (const bool caching : {false, true}) {
    for (const int32_t reach : {1, 2, 3, 4, 5, 9, 16, 23}) {
      SchedulerOptions options = WindowOptions(64, reach);
      options.blocks.enable_prefix_caching = caching;
      options.blocks.num_blocks = 1 + AtOnce(options);
      options.max_model_len = 1000;
      Harness harness(options, depth());
      const EngineRequest request = MakeRequest("a", 300, 100), other = MakeRequest("b", 150, 50, 7);
      ASSERT_TRUE(CheckRequest(options, request).ok());
      harness.Run(request, other);
      ASSERT_FALSE(HasFatalFailure()) << reach;
      ExpectExact({request, other}, harness);
    }
  }
}

TEST_P(WindowTest, OneBlockLessRefusesWhatIsLonger) {
  SchedulerOptions options = WindowOptions();
  options.max_model_len = 1000;
  options.blocks.num_blocks = AtOnce(options);
  const int32_t capacity = 4 * (options.blocks.num_blocks - 1);
  EXPECT_TRUE(CheckRequest(options, MakeRequest("a", capacity - 1, 1)).ok());
  const absl::Status status = CheckRequest(options, MakeRequest("a", capacity, 1));
  EXPECT_NE(status.message().find("can never fit"), absl::string_view::npos) << status;
  options.blocks.num_blocks += 1;
  EXPECT_TRUE(CheckRequest(options, MakeRequest("a", 900, 100)).ok());
  EngineRequest beams = BeamRequest("b", 2, 40, 10);
  EXPECT_FALSE(CheckRequest(options, beams).ok()) << "beams keep all blocks";
}

// Long prompts run at once, in a cache too small for any whole prompt: blocks that a prompt gives back go to
// any prompt that needs blocks, and a prompt without blocks preempts the last.
TEST_P(WindowTest, LongPromptsShareASmallCache) {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    for (int32_t more = 0; more < 14; more += 3) {
      SchedulerOptions options = WindowOptions();
      options.max_model_len = 400;
      options.max_num_partial_prefills = options.max_long_partial_prefills = 4;
      options.long_prefill_token_threshold = 5;
      options.preemption = mode;
      options.blocks.num_host_blocks = mode == PreemptionMode::kSwap ? 200 : 0;
      options.blocks.num_blocks = 1 + AtOnce(options) + more;
      Harness harness(options, depth());
      std::vector<EngineRequest> requests;
      for (int i = 0; i < 6; ++i)
        requests.push_back(MakeRequest(std::to_string(i), 120 + 10 * i, 40, i % 2 == 0 ? 1 : 500));
      for (const EngineRequest& request : requests) harness.Add(request);
      harness.RunToEnd();
      ASSERT_FALSE(HasFatalFailure()) << more;
      ExpectExact(requests, harness);
      EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
    }
  }
}

// A prompt that finds no block for the next token waits while the step computes beams behind it.
TEST_P(WindowTest, BeamsOfTheStepAreNotPreemptedForAPrompt) {
  for (int32_t more = 8; more < 20; ++more) {
    for (const int32_t width : {2, 3}) {
      SchedulerOptions options = WindowOptions();
      options.max_model_len = 400;
      options.max_num_partial_prefills = options.max_long_partial_prefills = 4;
      options.long_prefill_token_threshold = 5;
      options.blocks.num_blocks = 1 + AtOnce(options) + more;
      Harness harness(options, depth());
      std::vector<EngineRequest> requests;
      for (int i = 0; i < 4; ++i) {
        EngineRequest beams = BeamRequest("b" + std::to_string(i), width, 4 + i, 16, 100 * i);
        ParamsOf(&beams)->ignore_eos = true;
        if (!CheckRequest(options, beams).ok()) continue;
        requests.push_back(MakeRequest(std::to_string(i), 300, 5, 100 * i));
        harness.Add(requests.back(), beams);
      }
      harness.RunToEnd();
      ASSERT_FALSE(HasFatalFailure()) << more << " " << width;
      ExpectExact(requests, harness);
    }
  }
}

TEST_P(WindowTest, WithoutAReachNothingIsGivenBack) {
  Harness harness(WindowOptions(64, 0), depth());
  const EngineRequest request = MakeRequest("a", 16, 40);
  harness.Add(request);
  for (int i = 0; i < 39; ++i) harness.Step();
  EXPECT_GE(harness.scheduler.blocks().pool().num_used(), 12);
  EXPECT_EQ(harness.scheduler.stats().given_back_blocks, 0);
  harness.RunToEnd();
  ExpectExact({request}, harness);
}

// More sequences run at once than would fit with all of their tokens: none is preempted.
TEST_P(WindowTest, SequencesRunTogetherThatWouldNotFitWhole) {
  SchedulerOptions options = WindowOptions(/*num_blocks=*/1 + 6 * 6);
  options.blocks.enable_prefix_caching = false;
  Harness harness(options, depth());
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(MakeRequest(std::to_string(i), 8, 80, 100 * i));
  for (const EngineRequest& request : requests) harness.Add(request);
  harness.RunToEnd();
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 0);
  ExpectExact(requests, harness);
}

// Blocks that were given back stay cached.
TEST_P(WindowTest, ALaterPromptFindsTheBlocksThatWereGivenBack) {
  Harness harness(WindowOptions(), depth());
  const EngineRequest first = MakeRequest("a", 40, 20);
  harness.Add(first);
  for (int i = 0; i < 10; ++i) harness.Step();
  EngineRequest second = MakeRequest("b", 46, 20);
  harness.Run(second);
  EXPECT_EQ(harness.answers["b"].num_cached, 40);
  ExpectExact({first, second}, harness);
}

// Other requests have taken the beginning's first blocks; the blocks of the last window are there.
TEST_P(WindowTest, ABeginningIsFoundByItsLastBlocks) {
  for (const int32_t max_passed : {0, 1000}) {
    SchedulerOptions options = WindowOptions(/*num_blocks=*/26);
    options.blocks.max_passed_contents = max_passed;
    Harness harness(options, depth());
    const EngineRequest first = MakeRequest("a", 40, 5), other = MakeRequest("b", 60, 20, 500);
    harness.Run(first);
    harness.Run(other);
    EXPECT_GT(harness.scheduler.blocks().pool().counts().lost[static_cast<size_t>(CacheLoss::kEvicted)], 2);
    EngineRequest again = MakeRequest("c", 40, 9);
    harness.Run(again);
    ASSERT_FALSE(HasFatalFailure());
    // Without the tokens of lost blocks nothing leads to later blocks.
    EXPECT_EQ(harness.answers["c"].num_cached, max_passed == 0 ? 0 : 36);
    ExpectExact({first, other, again}, harness);
  }
}

// Where a block of the last window is lost, an earlier end with a whole window is found, or none.
TEST_P(WindowTest, ABeginningEndsWhereItsWindowIsWhole) {
  for (int32_t length = 20; length < 100; length += 7) {
    Harness harness(WindowOptions(/*num_blocks=*/26), depth());
    const EngineRequest first = MakeRequest("a", 70, 5), other = MakeRequest("b", length, 2, 500);
    for (const EngineRequest& request : {first, other}) {
      harness.Run(request);
    }
    std::vector<EngineRequest> all = {first, other};
    for (int i = 0; i < 4; ++i) {  // shorter and shorter, also with a changed end
      all.push_back(MakeRequest("c" + std::to_string(i), 70 - 13 * i, 6));
      if (i % 2 == 1) SetPromptToken(all.back().prompt.size() - 1, 900, &all.back());
      harness.Run(all.back());
    }
    ASSERT_FALSE(HasFatalFailure()) << length;
    ExpectExact(all, harness);
  }
}

TEST_P(WindowTest, ASwappedSequenceGoesOnWithTheBlocksOfItsWindow) {
  for (const bool caching : {false, true}) {
    SchedulerOptions options = WindowOptions(/*num_blocks=*/1 + 15);
    options.preemption = PreemptionMode::kSwap;
    options.blocks.num_host_blocks = 64;
    options.blocks.enable_prefix_caching = caching;
    options.max_model_len = 56;
    Harness harness(options, depth());
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 7; ++i) requests.push_back(MakeRequest(std::to_string(i), 8, 40, 100 * i));
    for (const EngineRequest& request : requests) harness.Add(request);
    harness.RunToEnd();
    ASSERT_FALSE(HasFatalFailure());
    const SchedulerStats& stats = harness.scheduler.stats();
    EXPECT_GT(stats.preemptions.by_swap[static_cast<size_t>(PreemptionCause::kNoBlocks)], 0);
    EXPECT_GT(stats.given_back_blocks, 0);
    ExpectExact(requests, harness);
    EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
  }
}

TEST_P(WindowTest, ASleepAtAnyMomentKeepsTheBlocksOfTheWindow) {
  for (int after = 0; after < 45; after += 4) {
    SchedulerOptions options = WindowOptions();
    options.blocks.num_host_blocks = 64;
    Harness harness(options, depth());
    const EngineRequest a = MakeRequest("a", 40, 40), b = MakeRequest("b", 6, 40, 400);
    harness.Add(a, b);
    for (int i = 0; i < after; ++i) harness.Step();
    harness.SleepKeeping();
    harness.WakeKeeping();
    const int64_t computed = harness.worker.num_computed_tokens();
    harness.RunToEnd();
    ASSERT_FALSE(HasFatalFailure()) << after;
    EXPECT_EQ(harness.worker.num_computed_tokens(), 40 + 39 + 6 + 39) << after << ", before " << computed;
    ExpectExact({a, b}, harness);
  }
}

TEST_P(WindowTest, AfterALossAllIsComputedAgain) {
  Harness harness(WindowOptions(), depth());
  const EngineRequest a = MakeRequest("a", 40, 40), b = MakeRequest("b", 6, 40, 400);
  harness.Add(a, b);
  for (int i = 0; i < 25; ++i) harness.Step();
  harness.Lose();
  harness.RunToEnd();
  ExpectExact({a, b}, harness);
}

TEST_P(WindowTest, ForksShareTheWindowOfTheirPrompt) {
  Harness harness(WindowOptions(), depth());
  std::vector<EngineRequest> choices(4, MakeRequest("c0", 42, 30));
  for (int i = 1; i < 4; ++i) {
    choices[i].id = "c" + std::to_string(i);
    choices[i].fork_of = "c0";
    choices[i].seed = static_cast<uint64_t>(i);
  }
  for (const EngineRequest& request : choices) harness.Add(request);
  harness.RunToEnd();
  EXPECT_EQ(harness.scheduler.stats().num_forks, 3);
  EXPECT_GT(harness.scheduler.stats().given_back_blocks, 0);
  ExpectExact(choices, harness);
}

TEST_P(WindowTest, DraftsThatAreWrongFindTheWindowOfTheTokenBefore) {
  SchedulerOptions options = WindowOptions();
  options.speculation = FakeDrafts(7, [](int64_t position) { return position % 5 == 0; });
  Harness harness(options, depth());
  const EngineRequest request = MakeRequest("a", 30, 60);
  harness.Run(request);
  EXPECT_GT(harness.scheduler.speculation().num_drafts, 0);
  EXPECT_GT(harness.scheduler.stats().given_back_blocks, 10);
  ExpectExact({request}, harness);
}

TEST_P(WindowTest, BeamsKeepAllBlocks) {
  Harness harness(WindowOptions(/*num_blocks=*/200), depth());
  EngineRequest request = BeamRequest("b", 4, 30, 30);
  ParamsOf(&request)->ignore_eos = true;
  harness.Run(request);
  EXPECT_EQ(harness.scheduler.stats().given_back_blocks, 0);
  ExpectExactAnswer(request, harness);
}

}  // namespace
}  // namespace somnus
