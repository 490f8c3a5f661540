#include "coordinator/metrics/step_trace.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

class CountingObserver : public EngineObserver {
 public:
  void OnStep(const StepEvent& /*event*/) override { ++num_steps; }
  void OnRecovered(absl::Duration /*duration*/) override { ++num_recoveries; }
  void OnRequestFinished(const EngineRequest& /*request*/, const FinishedRequest& /*end*/) override {}
  int num_steps = 0, num_recoveries = 0;
};

class StepTraceTest : public ::testing::Test {
 protected:
  void Step(int64_t id) {
    now_ += absl::Milliseconds(10);
    trace_.OnStep(StepEvent{.step_id = id, .replied = now_, .duration = absl::Milliseconds(8)});
  }

  MonotonicTime now_ = absl::Hours(1);
  CountingObserver behind_;
  StepTrace trace_{&behind_, {.max_steps = 20, .max_spans = 5}, [this] { return now_; }};
};

TEST_F(StepTraceTest, HasWhatEndedWithinTheTimeAskedFor) {
  for (int64_t id = 1; id <= 10; ++id) Step(id);
  const Trace last = trace_.Last(absl::Milliseconds(25));
  ASSERT_EQ(last.steps.size(), 3u);
  EXPECT_EQ(last.steps.front().step_id, 8);
  EXPECT_EQ(last.steps.back().step_id, 10);
  EXPECT_EQ(trace_.Last(absl::Hours(1)).steps.size(), 10u);
  EXPECT_EQ(behind_.num_steps, 10);
}

TEST_F(StepTraceTest, ForgetsTheOldestStep) {
  for (int64_t id = 1; id <= 25; ++id) Step(id);
  const Trace all = trace_.Last(absl::Hours(2));
  ASSERT_EQ(all.steps.size(), 20u);
  EXPECT_EQ(all.steps.front().step_id, 6);
}

TEST_F(StepTraceTest, HasWhatElseTookTheEnginesTime) {
  TransitionEvent transition{.duration = absl::Milliseconds(40)};
  trace_.OnTransition(transition);
  now_ += absl::Seconds(1);
  transition.wakes = true;
  trace_.OnTransition(transition);
  trace_.OnRecovered(absl::Milliseconds(700));
  const Trace all = trace_.Last(absl::Hours(1));
  ASSERT_EQ(all.spans.size(), 3u);
  EXPECT_EQ(all.spans[0].name, "sleep");
  EXPECT_EQ(all.spans[0].begin, absl::Hours(1) - absl::Milliseconds(40));
  EXPECT_EQ(all.spans[1].name, "wake_up");
  EXPECT_EQ(all.spans[2].name, "recovery");
  EXPECT_EQ(all.spans[2].duration, absl::Milliseconds(700));
  EXPECT_EQ(trace_.Last(absl::Milliseconds(500)).spans.size(), 2u) << "the sleep ended a second ago";
  EXPECT_EQ(behind_.num_recoveries, 1);
  for (int i = 0; i < 5; ++i) trace_.OnRecovered(absl::Milliseconds(1));
  EXPECT_EQ(trace_.Last(absl::Hours(1)).spans.size(), 5u);
}

}  // namespace
}  // namespace somnus
