// Pinned prefixes stay under pressure, change no token, and never stop a sequence.

#include <gtest/gtest.h>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/reference_beams.h"

namespace somnus {
namespace {

// As MakeRequest makes prompts.
PrefixPin MakePin(const std::string& id, int32_t num_tokens, int32_t first = 1) {
  return {id, MakeRequest("", num_tokens, 0, first).prompt, ""};
}

int32_t NumHeld(const Harness& harness, int32_t index = 0) {
  return harness.scheduler.blocks().pins().num_held(index);
}

class PinsTest : public testing::TestWithParam<size_t> {
 protected:
  size_t depth() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Depths, PinsTest, testing::Values(0, 1));

TEST_P(PinsTest, APinnedPromptIsCachedHoweverOftenTheCacheIsTurnedOver) {
  for (const bool pins : {false, true}) {
    Harness harness(SmallOptions(/*num_blocks=*/21), depth());
    if (pins) harness.scheduler.pins().Add(MakePin("pin", 12));
    harness.Run(MakeRequest("first", 13, 1));
    for (int i = 0; i < 20; ++i) harness.Add(MakeRequest(std::to_string(i), 30, 10, 100 * (i + 1)));
    harness.RunToEnd();
    harness.Run(MakeRequest("again", 13, 8));
    EXPECT_EQ(harness.answers["again"].num_cached, pins ? 12 : 0);
    EXPECT_EQ(harness.answers["again"].tokens, Reference(MakeRequest("", 13, 8)));
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(harness.answers[std::to_string(i)].tokens, Reference(MakeRequest("", 30, 10, 100 * (i + 1))));
    }
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), pins ? 3 : 0);
  }
}

TEST_P(PinsTest, ASequenceThatNeedsTheWholeCacheIsAdmitted) {
  Harness harness(SmallOptions(/*num_blocks=*/21), depth());  // 80 tokens
  harness.scheduler.pins().Add(MakePin("a", 12));
  harness.scheduler.pins().Add(MakePin("b", 8, 500));
  harness.Run(MakeRequest("a", 13, 1), MakeRequest("b", 9, 1, 500));
  ASSERT_EQ(NumHeld(harness, 0) + NumHeld(harness, 1), 5);
  const EngineRequest long_one = MakeRequest("long", 70, 5, 1000);  // 19 of 20 blocks
  harness.Run(long_one);
  EXPECT_EQ(harness.answers["long"].tokens, Reference(long_one));
  EXPECT_EQ(harness.scheduler.blocks().pins().releases().no_blocks, 2);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 0);
  EXPECT_EQ(harness.scheduler.blocks().pins().size(), 2) << "they stay registered";
  harness.Run(MakeRequest("a again", 13, 1));
  EXPECT_EQ(NumHeld(harness, 0), 3);
  EXPECT_EQ(NumHeld(harness, 1), 0);
}

TEST_P(PinsTest, NoMorePinsGiveWayThanHaveTo) {
  Harness harness(SmallOptions(/*num_blocks=*/21), depth());
  harness.scheduler.pins().Add(MakePin("a", 12));
  harness.scheduler.pins().Add(MakePin("b", 12, 500));
  harness.Run(MakeRequest("a", 13, 1), MakeRequest("b", 13, 1, 500));
  const EngineRequest request = MakeRequest("c", 60, 5, 1000);  // 17 blocks
  harness.Run(request);
  EXPECT_EQ(harness.answers["c"].tokens, Reference(request));
  EXPECT_EQ(NumHeld(harness, 0), 3);
  EXPECT_EQ(NumHeld(harness, 1), 0);
}

TEST_P(PinsTest, ASequenceThatGrowsAloneIsNotPreempted) {
  Harness harness(SmallOptions(/*num_blocks=*/14), depth());  // 52 tokens
  harness.scheduler.pins().Add(MakePin("a", 12));
  harness.Run(MakeRequest("a", 13, 1));
  const EngineRequest growing = MakeRequest("growing", 20, 30, 1000);
  harness.Run(growing);
  EXPECT_EQ(harness.answers["growing"].tokens, Reference(growing));
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 0);
  EXPECT_EQ(harness.scheduler.blocks().pins().releases().no_blocks, 1);
}

TEST_P(PinsTest, WhileOthersRunASequenceWaitsAndPinsStay) {
  Harness harness(SmallOptions(/*num_blocks=*/21), depth());
  harness.scheduler.pins().Add(MakePin("a", 12));
  harness.Run(MakeRequest("a", 13, 1));
  const EngineRequest one = MakeRequest("one", 20, 20, 1000), two = MakeRequest("two", 40, 20, 2000);
  harness.Run(one, two);
  EXPECT_EQ(harness.answers["one"].tokens, Reference(one));
  EXPECT_EQ(harness.answers["two"].tokens, Reference(two));
  EXPECT_EQ(NumHeld(harness), 3);
  EXPECT_EQ(harness.scheduler.blocks().pins().releases().no_blocks, 0);
}

TEST_P(PinsTest, BeamsThatNeedTheWholeCacheGetIt) {
  Harness harness(SmallOptions(/*num_blocks=*/13), depth());
  harness.scheduler.pins().Add(MakePin("a", 32));
  harness.Run(MakeRequest("a", 33, 1));
  ASSERT_EQ(NumHeld(harness), 8);
  // The search begins with two of the pinned blocks, and a single beam takes seven in the end.
  EngineRequest beams = BeamRequest("beams", 2, 8, 20);
  ParamsOf(&beams)->ignore_eos = true;
  ASSERT_TRUE(CheckRequest(SmallOptions(13), beams).ok());
  harness.Run(beams);
  ASSERT_FALSE(HasFatalFailure());
  ExpectExactAnswer(beams, harness);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 0);
  EXPECT_EQ(harness.scheduler.blocks().pins().releases().no_blocks, 1);
}

TEST_P(PinsTest, ALossOfTheWorkersLosesTheBlocksAndARequestBringsThemBack) {
  Harness harness(SmallOptions(), depth());
  harness.scheduler.pins().Add(MakePin("a", 12));
  const EngineRequest request = MakeRequest("a", 13, 10);
  harness.Add(request);
  for (int i = 0; i < 4; ++i) harness.Step();
  EXPECT_EQ(NumHeld(harness), 3);
  harness.Lose();
  EXPECT_EQ(NumHeld(harness), 0);
  EXPECT_EQ(harness.scheduler.blocks().pins().releases().forgotten, 1);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
  EXPECT_EQ(NumHeld(harness), 3);
}

TEST_P(PinsTest, ASleepThatKeepsBlocksKeepsPinnedOnes) {
  SchedulerOptions options = SmallOptions(/*num_blocks=*/21);
  options.blocks.num_host_blocks = 3;
  Harness harness(options, depth());
  harness.scheduler.pins().Add(MakePin("a", 12));
  harness.Run(MakeRequest("a", 13, 1));
  harness.Run(MakeRequest("other", 30, 1, 1000));
  harness.SleepKeeping();
  EXPECT_EQ(NumHeld(harness), 3);
  harness.WakeKeeping();
  harness.Run(MakeRequest("again", 13, 8));
  EXPECT_EQ(harness.answers["again"].num_cached, 12);
  EXPECT_EQ(harness.answers["again"].tokens, Reference(MakeRequest("", 13, 8)));
}

TEST_P(PinsTest, BadLogitsTakeTheBlocksFromThePin) {
  Harness harness(SmallOptions(), depth());
  harness.scheduler.pins().Add(MakePin("a", 12));
  harness.worker.MakeNan(1, 0);
  harness.Run(MakeRequest("bad", 13, 5));
  EXPECT_EQ(harness.answers["bad"].reason, FinishReason::kError);
  EXPECT_EQ(NumHeld(harness), 0);
  harness.Run(MakeRequest("good", 13, 5));
  EXPECT_EQ(harness.answers["good"].tokens, Reference(MakeRequest("", 13, 5)));
  EXPECT_EQ(NumHeld(harness), 3);
}

}  // namespace
}  // namespace somnus
