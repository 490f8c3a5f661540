// Times that the engine measures of requests and steps.

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

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

// Keeps the reports of a single request. To be read once the engine has stopped.
class OneRequest : public EngineObserver {
 public:
  void OnStep(const StepEvent&) override {}
  void OnRecovered(absl::Duration) override {}
  void OnTokens(const TokensEvent& event) override { tokens.push_back(event); }
  void OnRequestFinished(const EngineRequest&, const FinishedRequest& end) override { moments = end.moments; }

  std::vector<TokensEvent> tokens;
  RequestMoments moments;
};

TEST_P(EngineTimesTest, TokensSayHowLongTheRequestHasWaitedForThem) {
  EngineOptions options = SmallEngine(GetParam());
  const absl::Time start = absl::Now();
  std::atomic<int> num_looks = 0;  // each look at the clock is a second later than the last
  options.now = [&] { return start + absl::Seconds(100 + ++num_looks); };
  FakeExecutor executor(SmallWorker(options));
  OneRequest told;
  EngineLoop engine(options, &executor, &told);
  Ticket ticket = MakeTicket("a", 10, 5);
  ticket.request.arrival = start;
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  engine.DrainAndStop(absl::Minutes(1));
  ASSERT_EQ(told.tokens.size(), 5u);
  EXPECT_GT(told.tokens[0].wait, absl::Seconds(100));
  EXPECT_EQ(told.tokens[0].wait, told.moments.first_token - start);
  absl::Duration further;
  for (size_t i = 1; i < told.tokens.size(); ++i) {
    EXPECT_GT(told.tokens[i].wait, absl::ZeroDuration()) << i;
    further += told.tokens[i].wait;
  }
  EXPECT_EQ(further, told.moments.last_token - told.moments.first_token);
}

}  // namespace
}  // namespace somnus
