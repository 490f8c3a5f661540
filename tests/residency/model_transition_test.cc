// The decision that is being carried out on one model, by values alone.

#include "coordinator/several_models/model_transition.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

ResidencyDecision Decision(ResidencyAction action) { return {.action = action, .model = 0, .level = 1}; }

TEST(ModelTransitionTest, TheEndOfADrainLeavesThePreemptionThatTookItsPlace) {
  ModelTransition transition(WakeRetryOptions{});
  const int64_t drain = transition.Begin(Decision(ResidencyAction::kDrain), nullptr);
  const int64_t preemption = transition.Begin(Decision(ResidencyAction::kPreempt), nullptr);
  transition.End(drain);
  ASSERT_TRUE(transition.decision.has_value());
  EXPECT_EQ(transition.decision->action, ResidencyAction::kPreempt);
  transition.End(preemption);
  EXPECT_FALSE(transition.decision.has_value());
}

TEST(ModelTransitionTest, AWakeUpForAnOperatorCountsOnlyWhileItIsCarriedOut) {
  ModelTransition transition(WakeRetryOptions{});
  OperatorWake wake{.id = 7};
  const int64_t id = transition.Begin(Decision(ResidencyAction::kWake), &wake);
  ASSERT_NE(transition.carried_wake(), nullptr);
  EXPECT_EQ(transition.carried_wake()->id, 7);
  transition.End(id);
  EXPECT_EQ(transition.carried_wake(), nullptr);
  // A wake-up for requests does not inherit the operator's.
  transition.Begin(Decision(ResidencyAction::kWake), nullptr);
  EXPECT_TRUE(transition.wakes());
  EXPECT_EQ(transition.carried_wake(), nullptr);
}

TEST(ModelTransitionTest, ADrainBecomesASleepWhenTheEngineReleasesMemory) {
  ModelTransition transition(WakeRetryOptions{});
  transition.Begin(Decision(ResidencyAction::kDrain), nullptr);
  EXPECT_EQ(transition.State(EngineState::kPausing), ModelState::kDraining);
  EXPECT_EQ(transition.State(EngineState::kFallingAsleep), ModelState::kFallingAsleep);
}

TEST(ModelTransitionTest, OnlySleepsThatMoveAllMemoryAtOnceAreMeasured) {
  ModelTransition transition(WakeRetryOptions{});
  for (const ResidencyAction action : {ResidencyAction::kSleepIfIdle, ResidencyAction::kPreempt}) {
    transition.NoteSleepTime(action, absl::Seconds(3));
    EXPECT_EQ(transition.sleep_time, absl::Seconds(3));
    for (const ResidencyAction other :
         {ResidencyAction::kDrain, ResidencyAction::kRelease, ResidencyAction::kDropBackup}) {
      transition.NoteSleepTime(other, absl::Milliseconds(1));
      EXPECT_EQ(transition.sleep_time, absl::Seconds(3));
    }
    transition.sleep_time = absl::ZeroDuration();
  }
}

TEST(ModelTransitionTest, AnOperatorsCallForgetsFailedSleeps) {
  ModelTransition transition(WakeRetryOptions{.first_pause = absl::Seconds(1)});
  const MonotonicTime now = absl::Hours(1);
  for (const int seconds : {1, 2, 4}) {
    const absl::Duration pause = transition.failed_sleeps.NoteFailed(now);
    EXPECT_EQ(pause, absl::Seconds(seconds));
    transition.awake_since = now + pause;
  }
  transition.ForgetFailedSleeps(now);
  EXPECT_EQ(transition.awake_since, now);
  EXPECT_EQ(transition.failed_sleeps.NoteFailed(now), absl::Seconds(1));
  // The time that a model has been awake without failures stays.
  transition.ForgetFailedSleeps(now + absl::Minutes(1));
  EXPECT_EQ(transition.awake_since, now);
}

TEST(ModelTransitionTest, ADecisionThatWasNotTriedIsTakenAgainAfterAPause) {
  ModelTransition transition(WakeRetryOptions{.first_pause = absl::Seconds(1)});
  transition.Begin(Decision(ResidencyAction::kWake), nullptr);
  transition.NoteUntried(absl::Seconds(10), absl::Seconds(1));
  EXPECT_FALSE(transition.decision.has_value());
  EXPECT_EQ(transition.State(EngineState::kAsleep), ModelState::kAsleep);
  EXPECT_GT(transition.retries.retry_at(), absl::Seconds(10));
  EXPECT_EQ(transition.awake_since, absl::Seconds(11));
}

}  // namespace
}  // namespace somnus
