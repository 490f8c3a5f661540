// The choices of one request are preempted together and come back together; shared blocks are swapped once,
// and are shared afterwards.

#include <gtest/gtest.h>

#include <set>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

std::vector<EngineRequest> Choices(const std::string& id, int32_t count, int32_t prompt_len,
                                   int32_t max_tokens, int32_t first) {
  std::vector<EngineRequest> choices(static_cast<size_t>(count),
                                     MakeRequest(id + "0", prompt_len, max_tokens, first));
  for (int32_t i = 1; i < count; ++i) {
    choices[i].id = id + std::to_string(i);
    choices[i].fork_of = id + "0";
  }
  return choices;
}

SchedulerOptions Options(int32_t num_blocks, PreemptionMode mode = PreemptionMode::kRecompute) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.preemption = mode;
  options.blocks.num_host_blocks = mode == PreemptionMode::kRecompute ? 0 : 64;
  return options;
}

void AddAll(const std::vector<EngineRequest>& requests, Harness* harness) {
  for (const EngineRequest& request : requests) harness->Add(request);
}

void ExpectExact(const std::vector<EngineRequest>& requests, const Harness& harness) {
  for (const EngineRequest& request : requests)
    EXPECT_EQ(harness.answers.at(request.id).tokens, Reference(request)) << request.id;
  EXPECT_EQ(
      harness.scheduler.blocks().pool().num_used() + harness.scheduler.blocks().host().pool().num_used(), 0);
}

using Parameters = std::tuple<size_t, PreemptionMode>;
class ChoicesTest : public testing::TestWithParam<Parameters> {
 protected:
  size_t depth() const { return std::get<0>(GetParam()); }
  PreemptionMode mode() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Modes, ChoicesTest,
                         testing::Combine(testing::Values(0, 1),
                                          testing::Values(PreemptionMode::kSwap,
                                                          PreemptionMode::kRecompute)));

TEST_P(ChoicesTest, AllGoAndAllComeBack) {
  Harness harness(Options(1 + 20, mode()), depth());
  const EngineRequest first = MakeRequest("first", 20, 40, 500);
  const std::vector<EngineRequest> choices = Choices("c", 3, 20, 16, 0);
  harness.Add(first);
  AddAll(choices, &harness);
  std::set<int32_t> running;
  int32_t before = 0;
  while (harness.scheduler.has_sequences()) {
    ASSERT_TRUE(harness.Step());
    running.insert(harness.scheduler.num_running());
    // Choices that are computed again come back one by one, as the budget of steps allows.
    const int32_t now = harness.scheduler.num_preempted();
    if (now > before || mode() == PreemptionMode::kSwap) {
      EXPECT_TRUE(now == 0 || now == 3) << now;
    }
    before = now;
    ASSERT_FALSE(HasFatalFailure());
  }
  harness.RunToEnd();
  ExpectExact(choices, harness);
  ExpectExact({first}, harness);
  EXPECT_GT(harness.scheduler.stats().num_preemptions(), 0);
  EXPECT_TRUE(running.contains(4) && running.contains(1));
}

TEST_P(ChoicesTest, APreemptionOfSeveralChoicesCountsOnce) {
  Harness harness(Options(1 + 20, mode()), depth());
  harness.Add(MakeRequest("first", 20, 40, 500));
  AddAll(Choices("c", 3, 20, 16, 0), &harness);
  while (harness.scheduler.num_preempted() == 0) ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.scheduler.num_preempted(), 3);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
  EXPECT_EQ(harness.scheduler.num_swapped(), mode() == PreemptionMode::kSwap ? 3 : 0);
  harness.RunToEnd();
}

// The sequence that lacks a block may be no choice of the request.
TEST_P(ChoicesTest, NobodyGoesAheadOfThoseThatComeBack) {
  Harness harness(Options(1 + 20, mode()), depth());
  const EngineRequest first = MakeRequest("first", 20, 40, 500);
  const std::vector<EngineRequest> choices = Choices("c", 3, 20, 16, 0);
  harness.Add(first);
  AddAll(choices, &harness);
  while (harness.scheduler.num_preempted() == 0) ASSERT_TRUE(harness.Step());
  const EngineRequest late = MakeRequest("late", 5, 5, 800);
  harness.Run(late);
  ExpectExact(choices, harness);
  ExpectExact({first, late}, harness);
}

TEST_P(ChoicesTest, ARequestWithTheCacheToItselfGivesItsChoicesUpOneByOne) {
  Harness harness(Options(1 + 12, mode()), depth());
  const std::vector<EngineRequest> choices = Choices("c", 4, 8, 24, 0);  // of 8 blocks each, 2 of them shared
  AddAll(choices, &harness);
  int32_t most = 0;
  while (harness.scheduler.has_sequences()) {
    ASSERT_TRUE(harness.Step());
    most = std::max(most, harness.scheduler.num_preempted());
    if (harness.scheduler.has_sequences()) {
      EXPECT_GT(harness.scheduler.num_running(), 0) << "one at least goes on";
    }
    ASSERT_FALSE(HasFatalFailure());
  }
  harness.RunToEnd();
  EXPECT_GT(most, 0);
  ExpectExact(choices, harness);
}

// No request here can ever be in the cache as a whole.
TEST_P(ChoicesTest, RequestsWhoseChoicesNeverFitTogetherAreServed) {
  for (const bool caches : {true, false}) {
    SchedulerOptions options = Options(1 + 12, mode());
    options.max_num_seqs = 16;
    options.blocks.enable_prefix_caching = caches;
    Harness harness(options, depth());
    std::vector<EngineRequest> all;
    for (int i = 0; i < 4; ++i) {
      const std::vector<EngineRequest> choices =
          Choices(std::string(1, static_cast<char>('a' + i)), 3 + i, 7, 24, 100 * i);
      all.insert(all.end(), choices.begin(), choices.end());
      all.push_back(MakeRequest("alone" + std::to_string(i), 9, 20, 50 + 100 * i));
    }
    AddAll(all, &harness);
    harness.RunToEnd();
    ASSERT_FALSE(HasFatalFailure());
    ExpectExact(all, harness);
  }
}

TEST_P(ChoicesTest, AnUrgentRequestDisplacesAllOrNone) {
  for (const bool one_is_urgent : {false, true}) {
    SchedulerOptions options = Options(1 + 40, mode());
    options.policy = SchedulingPolicy::kPriority;
    options.max_num_seqs = 3;
    Harness harness(options, depth());
    std::vector<EngineRequest> choices = Choices("c", 3, 20, 12, 0);
    for (EngineRequest& choice : choices) choice.priority = 5;
    AddAll(choices, &harness);
    for (int i = 0; i < 4; ++i) harness.Step();
    ASSERT_EQ(harness.scheduler.num_running(), 3);
    EngineRequest urgent = MakeRequest("urgent", 10, 3, 300);
    urgent.priority = one_is_urgent ? 1 : 5;
    harness.Add(urgent);
    harness.Step();
    EXPECT_EQ(harness.scheduler.num_preempted(), one_is_urgent ? 3 : 0);
    harness.RunToEnd();
    ExpectExact(choices, harness);
    ExpectExact({urgent}, harness);
  }
}

TEST_P(ChoicesTest, WhoIsAbortedIsNotWaitedFor) {
  Harness harness(Options(1 + 20, mode()), depth());
  harness.Add(MakeRequest("first", 20, 40, 500));
  const std::vector<EngineRequest> choices = Choices("c", 3, 20, 16, 0);
  AddAll(choices, &harness);
  while (harness.scheduler.num_preempted() == 0) ASSERT_TRUE(harness.Step());
  ASSERT_NE(harness.scheduler.Abort("c0"), nullptr);
  harness.Check();
  harness.RunToEnd();
  ExpectExact({choices[1], choices[2]}, harness);
}

TEST(ChoicesSwapTest, SharedBlocksAreSwappedOnceAndSharedAgain) {
  for (const bool caches : {false, true}) {
    SchedulerOptions options = Options(1 + 20, PreemptionMode::kSwap);
    options.blocks.enable_prefix_caching = caches;
    Harness harness(options);
    const EngineRequest first = MakeRequest("first", 20, 40, 500);
    const std::vector<EngineRequest> choices = Choices("c", 3, 20, 16, 0);
    harness.Add(first);
    AddAll(choices, &harness);
    while (harness.scheduler.num_swapped() == 0) ASSERT_TRUE(harness.Step());
    const v1::StepRequest out = harness.steps.back();
    std::set<int32_t> sources;
    for (const v1::BlockCopy& copy : out.swap_outs())
      EXPECT_TRUE(sources.insert(copy.src()).second) << "copied twice";
    EXPECT_LE(out.swap_outs_size(), 5 + 3 * 4) << "the prompt's five blocks are there once";
    EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), out.swap_outs_size());
    const int64_t computed = harness.worker.num_computed_tokens();
    while (harness.scheduler.num_swapped() > 0) ASSERT_TRUE(harness.Step());
    EXPECT_EQ(harness.scheduler.num_running(), 3 + (harness.answers["first"].tokens.size() < 40 ? 1 : 0))
        << "in one step";
    if (!caches) {
      EXPECT_EQ(harness.steps.back().swap_ins_size(), out.swap_outs_size());
    }
    std::set<int32_t> blocks;
    size_t count = 0;
    for (const v1::NewSequence& sequence : harness.steps.back().new_sequences()) {
      blocks.insert(sequence.block_ids().begin(), sequence.block_ids().end());
      count += static_cast<size_t>(sequence.block_ids_size());
    }
    // The fake worker's choices have the same outputs, so that the prefix cache has blocks of the outputs for
    // all choices.
    EXPECT_GE(count - blocks.size(), 2u * 5u) << "the prompt's blocks are those of all three";
    if (!caches) {
      EXPECT_EQ(count - blocks.size(), 2u * 5u);
    }
    EXPECT_GT(harness.worker.num_computed_tokens(), computed);
    harness.RunToEnd();
    EXPECT_EQ(harness.worker.num_computed_tokens(), 20 + 39 + 20 + 3 * 15) << "nothing twice";
    ExpectExact(choices, harness);
  }
}

}  // namespace
}  // namespace somnus
