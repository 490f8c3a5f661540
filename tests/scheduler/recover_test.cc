// A worker dies with steps in flight: every sequence goes on, with exactly the tokens of an undisturbed run.

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

std::vector<std::string> Ids(const std::vector<SequencePtr>& sequences) {
  std::vector<std::string> ids;
  for (const SequencePtr& sequence : sequences) ids.push_back(sequence->request.id);
  return ids;
}

class RecoverTest : public ::testing::TestWithParam<int> {
 protected:
  size_t depth() const { return static_cast<size_t>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Overlap, RecoverTest, ::testing::Values(0, 1));

// The prompts of both take two steps, so this covers losses in prefill and in decode.
TEST_P(RecoverTest, TokensAreThoseOfAnUndisturbedRunWheneverTheWorkerDies) {
  for (int lost_after = 0; lost_after < 12; ++lost_after) {
    Harness harness(SmallOptions(), depth());
    const EngineRequest a = MakeRequest("a", 18, 9), b = MakeRequest("b", 6, 9, 40);
    harness.Add(a, b);
    for (int i = 0; i < lost_after; ++i) harness.Step();
    harness.Lose();
    harness.RunToEnd();
    ASSERT_FALSE(HasFatalFailure()) << lost_after;
    EXPECT_EQ(harness.answers["a"].tokens, Reference(a)) << lost_after;
    EXPECT_EQ(harness.answers["b"].tokens, Reference(b)) << lost_after;
    EXPECT_EQ(harness.answers["a"].reason, FinishReason::kLength);
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  }
}

TEST_P(RecoverTest, PromptLogprobsAreDeliveredOnce) {
  for (int lost_after = 0; lost_after < 6; ++lost_after) {
    Harness harness(SmallOptions(), depth());
    EngineRequest request = MakeRequest("a", 40, 3);
    OwnSampling(&request)->num_prompt_logprobs = 0;
    harness.Add(request);
    for (int i = 0; i < lost_after; ++i) harness.Step();
    harness.Lose();
    harness.RunToEnd();
    EXPECT_EQ(harness.answers["a"].prompt_logprobs.size(), 40u) << lost_after;
    EXPECT_EQ(harness.answers["a"].tokens, Reference(request)) << lost_after;
  }
}

TEST(SchedulerRecover, ReturnsTheLiveSequencesInFlightOnce) {
  Scheduler scheduler(SmallOptions());
  for (const char* id : {"a", "b", "aborted"}) scheduler.Add(MakeRequest(id, 4, 5));
  scheduler.Schedule();
  scheduler.Schedule();
  ASSERT_NE(scheduler.Abort("aborted"), nullptr);
  scheduler.Add(MakeRequest("waits", 4, 5));
  EXPECT_EQ(Ids(scheduler.Recover()), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(scheduler.num_running(), 0);
  EXPECT_EQ(scheduler.num_waiting(), 3);
  EXPECT_TRUE(scheduler.Recover().empty());
  EXPECT_TRUE(scheduler.CheckIntegrity().ok());
}

// Blocks that were computed before are gone, and blocks that are computed afterwards are adopted again.
TEST_P(RecoverTest, NothingIsAdoptedThatWasComputedBefore) {
  Harness harness(SmallOptions(), depth());
  const EngineRequest first = MakeRequest("first", 12, 4);
  harness.Run(first);
  ASSERT_GT(harness.scheduler.blocks().pool().num_cached(), 0);
  EXPECT_TRUE(harness.Lose().empty());
  EXPECT_EQ(harness.scheduler.blocks().pool().num_cached(), 0);
  for (const auto& [id, cached] : {std::pair("second", 0), std::pair("third", 8)}) {
    EngineRequest request = first;
    request.id = id;
    harness.Run(request);
    EXPECT_EQ(harness.answers[id].num_cached, cached) << id;
    EXPECT_EQ(harness.answers[id].tokens, Reference(first)) << id;
  }
}

// The two requests that were in flight run one by one, and alone; then the rest go on together.
TEST_P(RecoverTest, SuspectsRunAlone) {
  Harness harness(SmallOptions(), depth());
  const std::vector<EngineRequest> requests = {MakeRequest("a", 6, 6), MakeRequest("b", 6, 6, 20),
                                               MakeRequest("c", 6, 6, 40), MakeRequest("d", 6, 6, 60)};
  harness.Add(requests[0], requests[1]);
  harness.Send(harness.scheduler.Schedule());
  harness.Add(requests[2], requests[3]);
  for (const SequencePtr& sequence : harness.Lose()) sequence->runs_alone = true;
  const size_t first = harness.steps.size();
  harness.RunToEnd();
  size_t alone = 0, together = 0;
  for (size_t i = first; i < harness.steps.size(); ++i) {
    (harness.steps[i].sequences_size() > 1 ? together : alone) += 1;
    if (together > 0) {
      EXPECT_EQ(harness.steps[i].sequences_size(), 2) << "the suspects come first";
    }
  }
  EXPECT_GE(alone, 10u);
  EXPECT_GE(together, 5u);
  for (const EngineRequest& request : requests)
    EXPECT_EQ(harness.answers[request.id].tokens, Reference(request)) << request.id;
}

}  // namespace
}  // namespace somnus
