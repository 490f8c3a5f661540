// An engine that requests wake and that sleeps by itself; above all, that no wake-up is lost.

#include "coordinator/engine/auto_sleep_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/synchronization/notification.h"
#include "proto/missing_memory.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

constexpr absl::Duration kSoon = absl::Milliseconds(1);

// Calls `after_sleep` once a sleep has ended, before the caller of the sleep hears of the end.
class ObservedLoop : public EngineLoop {
 public:
  ObservedLoop(EngineOptions options, Executor* executor, EngineObserver* observer,
               std::function<void()> after_sleep)
      : EngineLoop(std::move(options), executor, observer), after_sleep_(std::move(after_sleep)) {}

  LifecycleResult Run(const LifecycleRequest& request) override {
    LifecycleResult result = EngineLoop::Run(request);
    if (after_sleep_ && std::holds_alternative<SleepRequest>(request)) after_sleep_();
    return result;
  }

 private:
  const std::function<void()> after_sleep_;
};

class AutoSleepEngineTest : public ::testing::Test {
 protected:
  AutoSleepEngineTest() : options_(SmallEngine()) { executor_.emplace(SmallWorker(options_)); }

  void Start(SleepArrivals arrivals, absl::Duration idle_sleep = absl::ZeroDuration(), int idle_level = 1) {
    AutoSleepOptions options{.arrivals = arrivals, .idle_sleep = idle_sleep, .idle_level = idle_level};
    options.retry.first_pause = first_pause_;
    options.retry.longest_given_up = longest_pause_;
    options.retry.max_tries = max_tries_;
    options.now = [this] { return MonotonicNow() + absl::Seconds(ahead_s_.load()); };
    engine_ = std::make_unique<AutoSleepEngine>(options, nullptr, [&](EngineObserver* observer) {
      return std::make_shared<ObservedLoop>(options_, &*executor_, observer, after_sleep_);
    });
  }
  // For a second Start.
  void StartAnew() {
    engine_.reset();
    executor_.emplace(SmallWorker(options_));
  }
  template <typename Condition>
  void Await(const Condition& condition) {
    while (!condition()) absl::SleepFor(absl::Milliseconds(1));
  }
  void AwaitState(EngineState state) {
    Await([&] { return engine_->state() == state; });
  }
  Ticket Submit(const std::string& id, int32_t max_tokens = 5) {
    Ticket ticket = MakeTicket(id, 5, max_tokens);
    const absl::Status status = engine_->Submit(ticket.request);
    EXPECT_TRUE(status.ok()) << status;
    return ticket;
  }
  void ExpectExact(const Ticket& ticket) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }

  const EngineOptions options_;
  absl::Duration first_pause_ = kSoon;
  absl::Duration longest_pause_ = WakeRetryOptions().longest_given_up;
  std::function<void()> after_sleep_;  // as of ObservedLoop
  int max_tries_ = 0;                  // failures until wake-ups for requests end; 0: never
  std::atomic<int64_t> ahead_s_{0};    // of the clock
  std::optional<FakeExecutor> executor_;
  std::unique_ptr<AutoSleepEngine> engine_;
};

TEST_F(AutoSleepEngineTest, RequestsWaitForAnOperator) {
  Start(SleepArrivals::kQueue);
  ASSERT_TRUE(engine_->Sleep({}).ok());
  const Ticket ticket = Submit("a");
  EXPECT_FALSE(engine_->Health().ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectExact(ticket);
  EXPECT_EQ(engine_->Stats().num_auto_wake_ups, 0);
}

TEST_F(AutoSleepEngineTest, RequestsAreRefused) {
  Start(SleepArrivals::kReject);
  ExpectExact(Submit("a"));
  ASSERT_TRUE(engine_->Pause({}).ok());
  const Ticket paused = Submit("b");
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectExact(paused);
  ASSERT_TRUE(engine_->Sleep({}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Submit(MakeTicket("c", 5, 5).request)));
  EXPECT_FALSE(engine_->Health().ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectExact(Submit("d"));
}

TEST_F(AutoSleepEngineTest, ARequestWakesTheEngine) {
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_TRUE(engine_->Health().ok()) << "a request would be served";
  ExpectExact(Submit("a"));
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  Await([&] { return engine_->Stats().num_auto_wake_ups == 1; });
  EXPECT_EQ(executor_->lifecycle_calls().back(), "wake kv_cache weights workspace");
}

TEST_F(AutoSleepEngineTest, ARequestThatComesWhileTheEngineFallsAsleepWakesIt) {
  Start(SleepArrivals::kWake);
  executor_->HoldLifecycle(true);
  auto slept = std::async(std::launch::async, [this] { return engine_->Sleep({}).status(); });
  AwaitState(EngineState::kFallingAsleep);
  const Ticket ticket = Submit("a");
  executor_->HoldLifecycle(false);
  EXPECT_TRUE(slept.get().ok());
  ExpectExact(ticket);
}

TEST_F(AutoSleepEngineTest, ARequestThatWaitsDoesNotWakeWhatAnOperatorPutsToSleep) {
  Start(SleepArrivals::kWake);
  executor_->Hold(true);
  const Ticket open = Submit("a", 50);
  auto slept = std::async(std::launch::async, [this] { return engine_->Sleep({}).status(); });
  executor_->Hold(false);
  EXPECT_TRUE(slept.get().ok());
  EXPECT_EQ(engine_->state(), EngineState::kAsleep);
  const Ticket arrived = Submit("b");
  ExpectExact(arrived);
  ExpectExact(open);
}

TEST_F(AutoSleepEngineTest, AWakeUpThatFailsIsTriedAgain) {
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Sleep({}).ok());
  executor_->FailNextLifecycleCall(absl::ResourceExhaustedError("rank 1: 5 MiB missing"));
  ExpectExact(Submit("a"));
  EXPECT_EQ(executor_->lifecycle_calls().size(), 3u);
  EXPECT_TRUE(engine_->Health().ok());
}

// The error of a changed checkpoint has the code of a pause's error, but means a failure.
TEST_F(AutoSleepEngineTest, AWakeUpThatIsRefusedIsToldAndGivenUp) {
  const absl::Status refused = absl::FailedPreconditionError("rank 1: the checkpoint has changed");
  max_tries_ = 3;
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  executor_->SetWakeUpError(refused);
  const Ticket first = Submit("a");
  ASSERT_TRUE(first.sink->Wait());
  EXPECT_EQ(first.sink->reason(), FinishReason::kError);
  EXPECT_EQ(first.sink->error(),
            absl::UnavailableError("The model sleeps and could not be woken: rank 1: the "
                                   "checkpoint has changed"));
  EXPECT_EQ(executor_->lifecycle_calls().size(), 1u + 3u) << "tries are bounded";
  // Until the next try requests are refused with the reason.
  Await([&] { return engine_->Stats().num_waiting == 0; });
  EXPECT_EQ(What(engine_->Health()), "The engine is asleep, and could not be woken.");
  EXPECT_EQ(Why(engine_->Health()), "rank 1: the checkpoint has changed");
  EXPECT_EQ(engine_->Submit(MakeTicket("b", 5, 5).request), first.sink->error());
  EXPECT_EQ(engine_->Stats().wake_up_error, first.sink->error().message());
  // Later the next request causes a single try.
  ahead_s_ = 3600;
  EXPECT_TRUE(engine_->Health().ok());
  const Ticket next = Submit("c");
  ASSERT_TRUE(next.sink->Wait());
  EXPECT_EQ(next.sink->error(), first.sink->error());
  EXPECT_EQ(executor_->lifecycle_calls().size(), 1u + 4u);
  EXPECT_EQ(engine_->state(), EngineState::kAsleep);
  executor_->SetWakeUpError(absl::OkStatus());
  ahead_s_ = 7200;
  ExpectExact(Submit("d"));
  // The thread that woke the engine may note the end of the call after the request has ended.
  Await([&] { return engine_->Stats().wake_up_error.empty(); });
}

TEST_F(AutoSleepEngineTest, AnOperatorsCallMayMendAWakeUpThatWasGivenUp) {
  max_tries_ = 1;
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Sleep({}).ok());
  executor_->SetWakeUpError(absl::DataLossError("rank 0: the spill file is damaged"));
  const Ticket first = Submit("a");
  ASSERT_TRUE(first.sink->Wait());
  EXPECT_EQ(first.sink->reason(), FinishReason::kError);
  executor_->SetWakeUpError(absl::OkStatus());
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  ExpectExact(Submit("b"));
}

TEST_F(AutoSleepEngineTest, AWakeUpThatLacksMemoryIsTriedAsLongAsARequestWaits) {
  max_tries_ = 2;
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Sleep({}).ok());
  v1::MissingMemory missing;
  missing.add_shortages()->set_missing_bytes(5);
  executor_->SetWakeUpError(WithMissing(absl::ResourceExhaustedError("rank 1: 5 bytes missing"), missing));
  const Ticket ticket = Submit("a");
  Await([&] { return executor_->lifecycle_calls().size() >= 6; });
  EXPECT_FALSE(ticket.sink->done());
  EXPECT_FALSE(engine_->Health().ok());
  executor_->SetWakeUpError(absl::OkStatus());
  ExpectExact(ticket);
}

TEST_F(AutoSleepEngineTest, ARequestEndsNoPause) {
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Pause({}).ok());
  ASSERT_TRUE(engine_->Sleep({}).ok());
  EXPECT_FALSE(engine_->Health().ok());
  const Ticket ticket = Submit("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->WakeForArrivals().status()));
  EXPECT_EQ(engine_->state(), EngineState::kAsleep);
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectExact(ticket);
  Await([&] { return engine_->Stats().num_auto_wake_ups == 1; });
}

TEST_F(AutoSleepEngineTest, AnIdleEngineSleepsUntilTheNextRequest) {
  for (const SleepArrivals arrivals : {SleepArrivals::kQueue, SleepArrivals::kReject}) {
    Start(arrivals, kSoon);
    AwaitState(EngineState::kAsleep);
    EXPECT_TRUE(engine_->Health().ok());
    ExpectExact(Submit("a"));
    AwaitState(EngineState::kAsleep);
    Await([&] { return engine_->Stats().num_auto_sleeps >= 2; });
    EXPECT_GE(engine_->Stats().num_auto_wake_ups, 1);
    StartAnew();
  }
}

// Such as a sleep onto a full disk, which would be tried, and told, as often as the idle time passes.
TEST_F(AutoSleepEngineTest, ASleepThatFailsIsTriedLaterAndLaterOrAfterAnOperatorsCall) {
  first_pause_ = absl::Hours(1);
  executor_->SetBackupError(absl::ResourceExhaustedError("rank 0: no room on the disk"));
  Start(SleepArrivals::kQueue, kSoon);
  Await([&] { return !executor_->lifecycle_calls().empty(); });
  for (int i = 0; i < 10; ++i) {
    absl::SleepFor(5 * kSoon);  // idle for long enough
    ExpectExact(Submit(absl::StrCat(i)));
  }
  EXPECT_EQ(executor_->lifecycle_calls().size(), 1u);
  ASSERT_TRUE(engine_->Pause({}).ok());
  ASSERT_TRUE(engine_->Resume().ok());
  Await([&] { return executor_->lifecycle_calls().size() >= 2; });
  executor_->SetBackupError(absl::OkStatus());
  ASSERT_TRUE(engine_->Pause({}).ok());
  ASSERT_TRUE(engine_->Resume().ok());
  AwaitState(EngineState::kAsleep);
}

TEST_F(AutoSleepEngineTest, AfterAnOperatorsCallPausesAreShortAgain) {
  first_pause_ = absl::Hours(1);
  longest_pause_ = absl::Hours(1000);
  executor_->SetBackupError(absl::ResourceExhaustedError("rank 0: no room on the disk"));
  Start(SleepArrivals::kQueue, kSoon);
  Await([&] { return !executor_->lifecycle_calls().empty(); });
  size_t num_tries = 1;
  // Goes on hour by hour, so the number may be one too large or too small.
  const auto hours_until_next_try = [&] {
    int hours = 0;
    while (executor_->lifecycle_calls().size() == num_tries) {
      ahead_s_ += 3600;
      ExpectExact(Submit(absl::StrCat(num_tries, " ", ++hours)));
      absl::SleepFor(5 * kSoon);  // idle for long enough
    }
    ++num_tries;
    return hours;
  };
  for (const int pause : {1, 2, 4, 8, 16, 32}) EXPECT_GE(hours_until_next_try(), pause - 1);
  ASSERT_TRUE(engine_->Pause({}).ok());
  ASSERT_TRUE(engine_->Resume().ok());
  Await([&] { return executor_->lifecycle_calls().size() > num_tries; });
  ++num_tries;
  EXPECT_LT(hours_until_next_try(), 32) << "the next pause of the earlier failures is 64 hours";
}

TEST_F(AutoSleepEngineTest, AnOperatorsCallWhileASleepFailsCountsAsLater) {
  first_pause_ = absl::Hours(1);
  executor_->SetBackupError(absl::ResourceExhaustedError("rank 0: no room on the disk"));
  absl::Notification started;
  std::atomic<int> num_failed{0};
  after_sleep_ = [&] {
    started.WaitForNotification();
    if (num_failed++ > 0) return;
    EXPECT_TRUE(engine_->Pause({}).ok());
    EXPECT_TRUE(engine_->Resume().ok());
  };
  Start(SleepArrivals::kQueue, kSoon);
  started.Notify();
  Await([&] { return num_failed == 2; });  // without a pause
  engine_.reset();
}

TEST_F(AutoSleepEngineTest, AnIdleEngineDoesNotDiscardWeightsThatNoFileHas) {
  Start(SleepArrivals::kQueue, kSoon, /*idle_level=*/2);
  AwaitState(EngineState::kAsleep);
  EXPECT_EQ(engine_->Stats().sleep_level, 2);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  absl::StatusOr<std::unique_ptr<WeightUpdate>> update = absl::AbortedError("");
  // The engine may sleep once more in between.
  Await([&] { return engine_->WakeUp({}).ok() && (update = engine_->BeginWeightUpdate({})).ok(); });
  ASSERT_TRUE((*update)->Finish().ok());
  update->reset();
  const int64_t num_sleeps = engine_->Stats().num_auto_sleeps;
  Await([&] { return engine_->Stats().num_auto_sleeps > num_sleeps; });
  AwaitState(EngineState::kAsleep);
  EXPECT_EQ(engine_->Stats().sleep_level, 1);
  const Ticket ticket = Submit("a");
  ExpectExact(ticket);
  EXPECT_EQ(ticket.sink->weights_versions(), std::set<int64_t>{2});
  AwaitState(EngineState::kAsleep);
  // An operator's word counts; no request wakes weights that only a reload brings.
  ASSERT_TRUE(engine_->Sleep({.level = 2, .force = true}).ok());
  EXPECT_EQ(engine_->Stats().sleep_level, 2);
  EXPECT_EQ(
      What(engine_->Health()),
      "The weights came from an update and were discarded; requests wait until others have been brought.");
}

TEST_F(AutoSleepEngineTest, NoRequestWakesWeightsThatOnlyAReloadBrings) {
  Start(SleepArrivals::kWake);
  ASSERT_TRUE((*engine_->BeginWeightUpdate({}))->Finish().ok());
  ASSERT_TRUE(engine_->Sleep({.level = 2, .force = true}).ok());
  const Ticket ticket = Submit("a");
  EXPECT_FALSE(engine_->Health().ok());
  ASSERT_TRUE(engine_->WakeUp({"weights"}).ok());
  ASSERT_TRUE((*engine_->BeginWeightUpdate({}))->Finish().ok());
  ExpectExact(ticket);
  EXPECT_EQ(executor_->lifecycle_calls(),
            (std::vector<std::string>{"begin update", "finish update as 2", "sleep 2", "wake weights unread",
                                      "begin update", "finish update as 3", "wake kv_cache workspace"}));
}

TEST_F(AutoSleepEngineTest, ARequestThatComesWhileAnIdleEngineFallsAsleepWakesIt) {
  executor_->HoldLifecycle(true);
  Start(SleepArrivals::kQueue, kSoon);
  AwaitState(EngineState::kFallingAsleep);
  const Ticket ticket = Submit("a");
  executor_->HoldLifecycle(false);
  ExpectExact(ticket);
}

TEST_F(AutoSleepEngineTest, AnOperatorsSleepIsNotEndedByARequest) {
  Start(SleepArrivals::kQueue, kSoon);
  AwaitState(EngineState::kAsleep);
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  const Ticket ticket = Submit("a");
  ASSERT_TRUE(engine_->ResetPrefixCache(false).ok());
  EXPECT_EQ(engine_->state(), EngineState::kAsleep);
  EXPECT_FALSE(ticket.sink->done());
  EXPECT_FALSE(engine_->Health().ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectExact(ticket);
}

TEST_F(AutoSleepEngineTest, APausedEngineDoesNotSleepByItself) {
  Start(SleepArrivals::kQueue, absl::Hours(1));
  ASSERT_TRUE(engine_->Pause({}).ok());
  EXPECT_TRUE(absl::IsAborted(engine_->Sleep({.only_if_idle = true}).status()));
  EXPECT_EQ(engine_->state(), EngineState::kPaused);
}

TEST_F(AutoSleepEngineTest, AnAbortedRequestNeedsNoWakeUp) {
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Pause({}).ok());
  ASSERT_TRUE(engine_->Sleep({}).ok());
  const Ticket ticket = Submit("a");
  engine_->Abort("a");
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kAbort);
  EXPECT_TRUE(ticket.sink->tokens().empty());
  ASSERT_TRUE(engine_->Resume().ok());
  ASSERT_TRUE(engine_->ResetPrefixCache(false).ok());
  EXPECT_EQ(engine_->state(), EngineState::kAsleep);
}

// Requests come at every point of falling asleep and waking; each is served.
TEST_F(AutoSleepEngineTest, NoWakeUpIsLost) {
  for (const SleepArrivals arrivals : {SleepArrivals::kQueue, SleepArrivals::kReject, SleepArrivals::kWake}) {
    Start(arrivals, absl::Microseconds(20));
    const auto client = [&](int number) {
      for (int i = 0; i < 100; ++i) {
        const Ticket ticket = Submit(absl::StrCat(number, "-", i), 1 + i % 3);
        ExpectExact(ticket);
        absl::SleepFor(absl::Microseconds(7 * ((i * (number + 1)) % 13)));
      }
    };
    std::thread first(client, 0), second(client, 1);
    first.join();
    second.join();
    StartAnew();
  }
}

TEST_F(AutoSleepEngineTest, TheEndDoesNotWaitForAWakeUp) {
  Start(SleepArrivals::kWake);
  ASSERT_TRUE(engine_->Sleep({}).ok());
  executor_->HoldLifecycle(true);
  const Ticket ticket = Submit("a");
  AwaitState(EngineState::kWaking);
  engine_->DrainAndStop(absl::ZeroDuration());
  EXPECT_TRUE(ticket.sink->done());
}

// The engine is awake before the operator's call has returned, and was not used for longer than the idle
// time.
TEST_F(AutoSleepEngineTest, TheIdleTimeBeginsAtTheEndOfAnOperatorsCall) {
  Start(SleepArrivals::kQueue, /*idle_sleep=*/absl::Minutes(30));
  engine_->OnStateChange([this] {
    if (engine_->state() == EngineState::kAwake) absl::SleepFor(absl::Milliseconds(20));
  });
  const auto expect_stays = [this] {
    ASSERT_TRUE(engine_->ResetPrefixCache(false).ok());  // after the engine's own calls
    EXPECT_EQ(engine_->state(), EngineState::kAwake);
  };
  ASSERT_TRUE(engine_->Sleep({}).ok());
  ahead_s_ += 3600;
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  expect_stays();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  ahead_s_ += 3600;
  ASSERT_TRUE((*update)->Finish().ok());
  update->reset();
  expect_stays();
  engine_->OnStateChange(nullptr);
}

}  // namespace
}  // namespace somnus
