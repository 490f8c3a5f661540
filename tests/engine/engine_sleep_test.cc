// Sleep, waking up, and the engine's state on the way.

#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

TEST(EngineTest, ASleepAfterAPartialWakeUpFreesWhatIsResident) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  ASSERT_TRUE(engine.Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine.WakeUp({"weights"}).ok());
  const auto freed = engine.Sleep({.level = 2});
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes(), (TagBytes{{"weights", 200}}));
  EXPECT_EQ(freed->tags, (std::map<std::string, TagOutcome>{{"kv_cache", {TagState::kDiscarded, false}},
                                                            {"weights", {TagState::kDiscarded, true}},
                                                            {"workspace", {TagState::kDiscarded, false}}}));
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  EXPECT_EQ(engine.Stats().sleep_level, 2);
  EXPECT_FALSE(engine.Sleep({.level = 2})->changed()) << "nothing is left to free";
  EXPECT_EQ(engine.WakeUp({})->mapped_bytes().size(), 3u);
  EXPECT_EQ(executor.lifecycle_calls(), (std::vector<std::string>{"sleep 2", "wake weights", "sleep 2",
                                                                  "wake kv_cache weights workspace"}));
}

TEST(EngineTest, ASleepReleasesTheTagsThatItNames) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  SleepRequest request{.tags = {"kv_cache"}};
  const auto freed = engine.Sleep(request);
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes(), (TagBytes{{"kv_cache", 100}}));
  EXPECT_EQ(freed->tags.size(), 1u);
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  EXPECT_EQ(engine.Stats().residency.asleep(), std::set<std::string>{"kv_cache"});
  request.tags = {"weights", "kv_cache"};
  const auto more = engine.Sleep(request);
  ASSERT_TRUE(more.ok()) << more.status();
  // The workspace goes along with the last of the two.
  EXPECT_EQ(more->tags, (std::map<std::string, TagOutcome>{{"kv_cache", {TagState::kDiscarded, false}},
                                                           {"weights", {TagState::kBackedUp, true}},
                                                           {"workspace", {TagState::kDiscarded, true}}}));
  EXPECT_EQ(engine.WakeUp({})->mapped_bytes(),
            (TagBytes{{"kv_cache", 100}, {"weights", 200}, {"workspace", 300}}));
  EXPECT_EQ(engine.state(), EngineState::kAwake);
  request.tags = {"brain"};
  EXPECT_TRUE(absl::IsInvalidArgument(engine.Sleep(request).status()));
  EXPECT_EQ(executor.lifecycle_calls(),
            (std::vector<std::string>{"sleep 1 kv_cache", "sleep 1", "wake kv_cache weights workspace"}));
}

TEST(EngineTest, AGroupThatWasAdoptedAsleepSleepsOn) {
  EngineOptions options = SmallEngine();
  options.residency.Slept({.level = 2});
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  EXPECT_EQ(engine.Stats().sleep_level, 2);
  EXPECT_EQ(
      What(engine.Health()),
      "The engine is asleep at level 2 (kv_cache, weights, workspace); requests wait until it is woken.");
  EXPECT_EQ(Why(engine.Health()), "its workers were taken over from an earlier server");
  Ticket ticket = MakeTicket("a", 5, 5);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  EXPECT_FALSE(engine.Sleep({.level = 1})->changed()) << "it sleeps deeper already";
  ASSERT_TRUE(engine.WakeUp({}).ok());
  EXPECT_EQ(engine.state(), EngineState::kAwake);
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  EXPECT_EQ(executor.lifecycle_calls(), (std::vector<std::string>{"wake kv_cache weights workspace"}));
}

TEST(EngineTest, TheWayToSleepAndBackIsNotHealthyAndQueuesRequests) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  EXPECT_TRUE(engine.Health().ok());
  Ticket a = MakeTicket("a", 5, 5), b = MakeTicket("b", 6, 5);
  executor.HoldLifecycle(true);
  std::thread sleeping([&] { EXPECT_TRUE(engine.Sleep({.level = 1}).ok()); });
  while (engine.state() == EngineState::kAwake) std::this_thread::yield();
  EXPECT_EQ(engine.state(), EngineState::kFallingAsleep);
  EXPECT_EQ(What(engine.Health()), "The engine is falling asleep; requests wait until it is woken.");
  ASSERT_TRUE(engine.Submit(a.request).ok());
  executor.HoldLifecycle(false);
  sleeping.join();
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  EXPECT_TRUE(absl::IsUnavailable(engine.Health()));
  executor.HoldLifecycle(true);
  std::thread waking([&] { EXPECT_TRUE(engine.WakeUp({}).ok()); });
  while (engine.state() == EngineState::kAsleep) std::this_thread::yield();
  EXPECT_EQ(engine.state(), EngineState::kWaking);
  EXPECT_EQ(What(engine.Health()), "The engine is waking up; requests wait until it is awake.");
  ASSERT_TRUE(engine.Submit(b.request).ok());
  executor.HoldLifecycle(false);
  waking.join();
  EXPECT_TRUE(engine.Health().ok());
  for (Ticket* ticket : {&a, &b}) {
    ASSERT_TRUE(ticket->sink->Wait());
    EXPECT_EQ(ticket->sink->tokens(), Reference(*ticket));
  }
}

TEST(EngineTest, SleepAndWakeErrorsLeaveTheStateAsItWas) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(engine.Sleep({.level = 3}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(engine.WakeUp({"brain"}).status()));
  EXPECT_TRUE(engine.WakeUp({}).ok()) << "awake already";
  executor.FailNextLifecycleCall(absl::InternalError("rank 1: no"));
  EXPECT_TRUE(absl::IsInternal(engine.Sleep({.level = 1}).status()));
  EXPECT_EQ(engine.state(), EngineState::kAwake);
  ASSERT_TRUE(engine.Sleep({.level = 2}).ok());
  executor.FailNextLifecycleCall(absl::ResourceExhaustedError("rank 1: 5 MiB missing"));
  EXPECT_TRUE(absl::IsResourceExhausted(engine.WakeUp({}).status()));
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  ASSERT_TRUE(engine.WakeUp({}).ok());
  Ticket ticket = MakeTicket("a", 5, 5);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
}

TEST(EngineTest, AFailedDeepeningOrWakeUpLeavesEveryTagAsItWas) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  executor.FailNextLifecycleCall(absl::InternalError("rank 1: no"));
  EXPECT_TRUE(absl::IsInternal(engine.Sleep({.level = 2}).status()));
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  EXPECT_EQ(engine.Stats().residency.state("weights"), TagState::kBackedUp);
  ASSERT_TRUE(engine.WakeUp({"weights"}).ok());
  executor.FailNextLifecycleCall(absl::ResourceExhaustedError("rank 1: 5 MiB missing"));
  EXPECT_TRUE(absl::IsResourceExhausted(engine.WakeUp({"kv_cache"}).status()));
  EXPECT_EQ(engine.state(), EngineState::kAsleep);
  EXPECT_EQ(engine.Stats().residency.asleep(), (std::set<std::string>{"kv_cache", "workspace"}));
  ASSERT_TRUE(engine.WakeUp({}).ok());
  EXPECT_EQ(engine.state(), EngineState::kAwake);
  EXPECT_EQ(executor.lifecycle_calls(),
            (std::vector<std::string>{"sleep 1", "sleep 2", "wake weights", "wake kv_cache workspace",
                                      "wake kv_cache workspace"}));
}

TEST(EngineTest, ARankLostOnTheWayFailsTheEngineWithTheReason) {
  const EngineOptions options = SmallEngine();
  for (const bool asleep : {false, true}) {
    FakeExecutor executor(SmallWorker(options));
    EngineLoop engine(options, &executor, nullptr);
    if (asleep) {
      ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
    }
    executor.HoldLifecycle(true);
    std::thread call(
        [&] { EXPECT_FALSE(asleep ? engine.WakeUp({}).ok() : engine.Sleep({.level = 1}).ok()); });
    while (executor.lifecycle_calls().size() < (asleep ? 2 : 1)) std::this_thread::yield();
    executor.Lose(absl::UnavailableError("rank 0 (pid 5) was killed by signal 9"));
    call.join();
    EXPECT_EQ(engine.state(), EngineState::kFailed);
    EXPECT_EQ(What(engine.Health()), "The engine has failed.");
    EXPECT_EQ(Why(engine.Health()), "rank 0 (pid 5) was killed by signal 9");
    EXPECT_EQ(engine.Stats().error, "rank 0 (pid 5) was killed by signal 9");
  }
}

TEST(EngineTest, EveryChangeOfStateIsReported) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  std::vector<EngineState> seen;
  EngineLoop engine(options, &executor, nullptr);
  engine.OnStateChange([&] { seen.push_back(engine.state()); });
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  ASSERT_TRUE(engine.WakeUp({"weights"}).ok());
  ASSERT_TRUE(engine.WakeUp({}).ok());
  engine.DrainAndStop(absl::ZeroDuration());
  using S = EngineState;
  EXPECT_EQ(seen, (std::vector<S>{S::kAwake, S::kFallingAsleep, S::kAsleep, S::kWaking, S::kAsleep,
                                  S::kWaking, S::kAwake, S::kDraining}));
}

TEST(EngineTest, AStateCallbackThatWasTakenBackRunsNoMore) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  int calls = 0;
  engine.OnStateChange([&] { ++calls; });
  engine.OnStateChange(nullptr);
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  EXPECT_EQ(calls, 1);
}

TEST(EngineTest, DrainWhileAsleepAbortsTheQueue) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  Ticket ticket = MakeTicket("a", 5, 50);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  engine.DrainAndStop(absl::Minutes(10));
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kAbort);
}

}  // namespace
}  // namespace somnus
