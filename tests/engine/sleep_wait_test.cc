// How long the oldest request has waited for memory that sleeps.

#include "coordinator/engine/sleep_wait.h"

#include <gtest/gtest.h>

#include <atomic>

#include "coordinator/engine/engine_loop.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

TEST(SleepWaitTest, ARequestWaitsFromItsArrivalOrFromTheSleep) {
  SleepWait wait;
  const auto of = [&](int64_t arrival, int64_t now) {
    return absl::ToInt64Seconds(wait.Of(At(arrival), At(now), absl::Seconds(now)));
  };
  EXPECT_EQ(of(5, 10), 0) << "it is awake";
  wait.NoteState(EngineState::kFallingAsleep, absl::Seconds(10));
  wait.NoteState(EngineState::kAsleep, absl::Seconds(12));
  EXPECT_EQ(of(5, 15), 5) << "since it fell asleep";
  EXPECT_EQ(of(13, 15), 2);
  EXPECT_EQ(of(20, 15), 0) << "the wall clock has jumped";
  EXPECT_EQ(wait.Of(std::nullopt, At(15), absl::Seconds(15)), absl::ZeroDuration());
  wait.NoteState(EngineState::kRecovering, absl::Seconds(16));
  wait.NoteState(EngineState::kWaking, absl::Seconds(17));
  EXPECT_EQ(of(5, 18), 8) << "a recovery does not end the wait";
  wait.NoteState(EngineState::kAwake, absl::Seconds(19));
  EXPECT_EQ(of(5, 20), 0);
  wait.NoteState(EngineState::kPaused, absl::Seconds(20));
  EXPECT_EQ(of(5, 21), 0) << "what is paused does not sleep";
}

TEST(SleepWaitTest, AnEngineKnowsItsOldestOpenRequest) {
  std::atomic<int64_t> now{1000};
  EngineOptions options = SmallEngine();
  options.now = [&] { return At(now); };
  options.monotonic_now = [&] { return absl::Seconds(now.load()); };
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  const auto submit = [&](const std::string& id) {
    Ticket ticket = MakeTicket(id, 5, 5);
    ticket.request.arrival = At(now);
    EXPECT_TRUE(engine.Submit(ticket.request).ok());
    return ticket;
  };
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  now = 1010;
  EXPECT_EQ(engine.Stats().oldest_wait, absl::ZeroDuration()) << "nobody waits";
  const Ticket first = submit("first");
  now = 1012;
  const Ticket second = submit("second");
  now = 1015;
  EXPECT_EQ(engine.Stats().oldest_wait, absl::Seconds(5));
  engine.Abort("first");
  ASSERT_TRUE(first.sink->Wait());
  EXPECT_EQ(engine.Stats().oldest_wait, absl::Seconds(3));
  ASSERT_TRUE(engine.WakeUp({}).ok());
  EXPECT_EQ(engine.Stats().oldest_wait, absl::ZeroDuration());
  ASSERT_TRUE(second.sink->Wait());
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  now = 1020;
  EXPECT_EQ(engine.Stats().oldest_wait, absl::ZeroDuration()) << "those have ended";
}

}  // namespace
}  // namespace somnus
