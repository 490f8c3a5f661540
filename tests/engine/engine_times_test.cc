// Times that the engine measures of requests and steps.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

class EngineTimesTest : public ::testing::TestWithParam<bool> {};  // async scheduling
INSTANTIATE_TEST_SUITE_P(OffAndOn, EngineTimesTest, ::testing::Bool());

TEST_P(EngineTimesTest, StepsThatOnlyDecodeAreMeasured) {
  const EngineOptions options = SmallEngine(GetParam());
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  const Ticket prefill = MakeTicket("a", 10, 1), decode = MakeTicket("b", 10, 5);
  ASSERT_TRUE(engine.Submit(prefill.request).ok());
  ASSERT_TRUE(prefill.sink->Wait());
  EXPECT_EQ(engine.Stats().decode_step_time, absl::ZeroDuration());
  ASSERT_TRUE(engine.Submit(decode.request).ok());
  ASSERT_TRUE(decode.sink->Wait());
  EXPECT_GT(engine.Stats().decode_step_time, absl::ZeroDuration());
}

TEST_P(EngineTimesTest, TimeInTheQueueIsAddedUp) {
  EngineOptions options = SmallEngine(GetParam());
  const absl::Time start = absl::Now();
  options.now = [start] { return start + absl::Seconds(100); };
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  for (const int seconds : {10, 30}) {
    Ticket ticket = MakeTicket(absl::StrCat(seconds), 10, 5);
    ticket.request.arrival = start + absl::Seconds(100 - seconds);
    ASSERT_TRUE(engine.Submit(ticket.request).ok());
    ASSERT_TRUE(ticket.sink->Wait());
  }
  EXPECT_EQ(engine.Stats().num_first_scheduled, 2);
  EXPECT_EQ(engine.Stats().queue_time, absl::Seconds(40));
}

}  // namespace
}  // namespace somnus
