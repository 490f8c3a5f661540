// Calls of operators about adapters: loads, loads in place, unloads and lists, and when such a call is late.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "coordinator/adapters/adapter_engine.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/engine/engine_report.h"
#include "tests/engine/engine_adapters_fixture.h"
#include "tests/engine/process_clocks.h"

namespace somnus {
namespace {

using testing::HasSubstr;

TEST_F(EngineAdaptersTest, NamesAreShownOnceTheWorkersHaveTheAdapter) {
  BeginWith({"poet"}, 2);
  EXPECT_EQ(LastCall(), "adapters 1=poet");
  ASSERT_EQ(Load("lawyer"), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=lawyer");
  EXPECT_EQ(Names(), "lawyer poet ");
  EXPECT_NE((*registry_->Acquire("poet"))->salt, (*registry_->Acquire("lawyer"))->salt);
  ASSERT_EQ(registry_->Unload("poet"), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 2=lawyer");
  ASSERT_EQ(Load("third"), absl::OkStatus());
  EXPECT_EQ((*registry_->Acquire("third"))->slot, 1) << "the place of the one that was unloaded";
}

TEST_F(EngineAdaptersTest, BadCallsChangeNothing) {
  BeginWith({"poet"}, 2);
  const size_t num_calls = executor_.lifecycle_calls().size();
  EXPECT_TRUE(absl::IsAlreadyExists(registry_->Load("poet", "/other", false)));
  for (const auto& [name, path] : {std::pair("", "/x"), std::pair("x", ""), std::pair("\xff", "/x")})
    EXPECT_TRUE(absl::IsInvalidArgument(registry_->Load(name, path, false)));
  EXPECT_TRUE(absl::IsNotFound(registry_->Unload("nobody")));
  EXPECT_EQ(executor_.lifecycle_calls().size(), num_calls);
  executor_.FailNextLifecycleCall(absl::NotFoundError("rank 1: adapter 'x'"));
  EXPECT_TRUE(absl::IsNotFound(Load("x")));
  EXPECT_EQ(Names(), "poet ");
  ASSERT_EQ(Load("y"), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=y");
}

TEST_F(EngineAdaptersTest, NamesAreBoundedAndPlacesAreNot) {
  registry_options_.max_names = 2;
  BeginWith({"poet", "lawyer"}, 1);
  const absl::Status full = Load("third");
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("--max-lora-names"));
  EXPECT_EQ(Load("poet", /*in_place=*/true), absl::OkStatus());
  ASSERT_EQ(registry_->Unload("poet"), absl::OkStatus());
  EXPECT_EQ(Load("third"), absl::OkStatus());
}

TEST_F(EngineAdaptersTest, AnUnloadThatRequestsHoldUpChangesNothing) {
  BeginWith({"poet"}, 1);
  const Ticket ticket = AskPaused("poet");
  const absl::Status busy = registry_->Unload("poet");
  EXPECT_TRUE(absl::IsDeadlineExceeded(busy)) << busy;
  EXPECT_EQ(Names(), "poet ") << "the adapter stays";
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectAnswer(ticket);
}

TEST_F(EngineAdaptersTest, AnAdapterWhoseNameAnotherOneHasTakenDoesNotStay) {
  Begin(2, absl::Seconds(1));
  ASSERT_EQ(registry_->Load("poet", "/old", false), absl::OkStatus());
  const Ticket ticket = AskPaused("poet");
  std::future<absl::Status> unloaded = StartUnload("poet");
  ASSERT_EQ(registry_->Load("poet", "/new", false), absl::OkStatus());
  EXPECT_THAT(std::string(unloaded.get().message()), HasSubstr("another one has its name now"));
  EXPECT_EQ(PathOf("poet"), "/new");
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectAnswer(ticket);
}

TEST_F(EngineAdaptersTest, AnUnloadWaitsForOpenRequests) {
  BeginWith({"poet"}, 1, absl::Minutes(1));
  const Ticket ticket = AskPaused("poet");
  std::future<absl::Status> unloaded = StartUnload("poet");
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectAnswer(ticket);
  EXPECT_EQ(unloaded.get(), absl::OkStatus());
}

TEST_F(EngineAdaptersTest, ALoadInPlaceLetsOpenRequestsEndWithTheOldOne) {
  Begin(2);
  ASSERT_EQ(registry_->Load("poet", "/old", false), absl::OkStatus());
  const Ticket ticket = AskPaused("poet");
  ASSERT_EQ(registry_->Load("poet", "/new", true), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=poet");
  EXPECT_EQ(PathOf("poet"), "/new");
  ASSERT_EQ(registry_->Load("poet", "/newest", true), absl::OkStatus()) << "nobody uses the new one";
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=poet");
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectAnswer(ticket);
  while (LastCall() != "adapters 2=poet 1=poet") {  // the place of the old adapter is free again
    ASSERT_EQ(registry_->Load("poet", "/last", true), absl::OkStatus());
  }
}

TEST_F(EngineAdaptersTest, WithoutAFreePlaceALoadWaits) {
  Begin(1);
  ASSERT_EQ(registry_->Load("poet", "/old", false), absl::OkStatus());
  const Ticket ticket = AskPaused("poet");
  EXPECT_TRUE(absl::IsDeadlineExceeded(registry_->Load("poet", "/new", true)));
  EXPECT_EQ(PathOf("poet"), "/old");
  const absl::Status full = Load("lawyer");
  EXPECT_TRUE(absl::IsDeadlineExceeded(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("--max-cpu-loras"));
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectAnswer(ticket);
  while (!registry_->Load("poet", "/new", true).ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(LastCall(), "adapters 1=poet");
  EXPECT_EQ(PathOf("poet"), "/new");
  executor_.FailNextLifecycleCall(absl::NotFoundError("no such files"));
  EXPECT_TRUE(absl::IsNotFound(registry_->Load("poet", "/nowhere", true)));
  EXPECT_EQ(PathOf("poet"), "/new");
  ExpectAnswer(Ask("poet"));
}

TEST_F(EngineAdaptersTest, StepsGoOnWhileTheWorkersReadAnAdapter) {
  Begin(2);
  std::future<absl::Status> loaded = StartRead("poet");
  ExpectAnswer(Ask("", "base"));
  EXPECT_THAT(executor_.lifecycle_calls(), testing::IsEmpty());
  EXPECT_FALSE(registry_->Knows("poet"));
  executor_.HoldAdapterReads(false);
  EXPECT_EQ(loaded.get(), absl::OkStatus());
  ExpectAnswer(Ask("poet"));
}

TEST_F(EngineAdaptersTest, AnAdapterThatCannotBeReadChangesNothing) {
  Begin(1);
  executor_.FailNextAdapterRead(absl::InvalidArgumentError("rank 0: adapter 'x': damaged"));
  EXPECT_TRUE(absl::IsInvalidArgument(Load("x")));
  EXPECT_THAT(executor_.lifecycle_calls(), testing::IsEmpty()) << "no step has waited";
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  executor_.FailNextAdapterRead(absl::InvalidArgumentError("rank 0: adapter 'x': damaged"));
  EXPECT_TRUE(absl::IsInvalidArgument(Load("x")));
  EXPECT_EQ(LastCall(), "adapters") << "the place of the least recently used adapter is free";
  EXPECT_EQ(Names(), "poet? ");
  ExpectAnswer(Ask("poet"));
}

TEST(EngineAdaptersReadyTest, ALoadThatDoesNotEndIsNotReady) {
  EngineOptions options = SmallEngine();
  options.step_stall = absl::Seconds(60);
  ProcessClocks clocks;
  clocks.Set(&options);
  FakeExecutor executor(SmallWorker(options));
  executor.HoldAdapterReads(true);
  executor.HoldLifecycle(true);
  const auto loop = std::make_shared<EngineLoop>(options, &executor, nullptr);
  AdapterRegistry registry(loop, AdapterRegistryOptions{.max_adapters = 1});
  auto load = std::async(std::launch::async, [&] { return registry.Load("poet", "/poet", false); });
  while (executor.adapter_reads().empty()) absl::SleepFor(absl::Milliseconds(1));
  const Ticket base = MakeTicket("base", 5, 3);
  ASSERT_TRUE(loop->Submit(base.request).ok());
  ASSERT_TRUE(base.sink->Wait());  // by now the loop has shown that steps go on
  clocks.Pass(absl::Seconds(61));
  EXPECT_EQ(loop->Stats().stall, absl::OkStatus()) << "no request waits while the workers read the files";
  executor.HoldAdapterReads(false);
  while (executor.lifecycle_calls().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(loop->Stats().stall, absl::OkStatus());
  clocks.PassWhileStopped(absl::Hours(1));
  EXPECT_EQ(loop->Stats().stall, absl::OkStatus()) << "a process that was stopped has not loaded";
  clocks.Pass(absl::Seconds(61));
  const StateReport report = ReportState(loop->Stats());
  EXPECT_EQ(report.since, clocks.begin + absl::Seconds(61));
  EXPECT_EQ(report.what, "Requests wait for a change of the adapters, for longer than 1m.");
  EXPECT_THAT(report.way_out, HasSubstr("somnus abort-call"));
  executor.HoldLifecycle(false);
  EXPECT_EQ(load.get(), absl::OkStatus());
  EXPECT_EQ(loop->Stats().stall, absl::OkStatus());
  loop->DrainAndStop(absl::ZeroDuration());
}

TEST(EngineAdaptersReadyTest, AReadingThatDoesNotEndIsToldOnceSomebodyWaitsAndAnOperatorEndsIt) {
  EngineOptions options = SmallEngine();
  options.step_stall = absl::Nanoseconds(1);
  FakeExecutor executor(SmallWorker(options));
  const auto loop = std::make_shared<EngineLoop>(options, &executor, nullptr);
  const auto registry = std::make_shared<AdapterRegistry>(loop, AdapterRegistryOptions{.max_adapters = 1});
  AdapterEngine engine(loop, registry, QueueLimits(), nullptr);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(registry->Load(name, "/x", false), absl::OkStatus());
  executor.HoldAdapterReads(true);
  auto load = std::async(std::launch::async, [&] { return registry->Load("third", "/third", false); });
  const auto reads_for_long = [&] {
    const LifecycleCallStats call = engine.Stats().lifecycle_call;
    return call.steps_go_on && !call.stall.ok();
  };
  while (!reads_for_long()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(engine.Health(), absl::OkStatus()) << "nobody waits";
  Ticket ticket = MakeTicket("of poet", 5, 3);
  ticket.request.adapter_name = "poet";
  ASSERT_EQ(engine.Submit(ticket.request), absl::OkStatus());
  EXPECT_THAT(std::string(engine.Health().message()), HasSubstr("somnus abort-call"));
  EXPECT_EQ(loop->Health(), absl::OkStatus());
  engine.Abort("of poet");
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(engine.Health(), absl::OkStatus());
  auto pause = std::async(std::launch::async, [&] { return loop->Pause({}); });
  while (loop->Health().ok()) absl::SleepFor(absl::Milliseconds(1));
  const StateReport report = ReportState(loop->Stats());
  EXPECT_EQ(
      report.what,
      "Other calls, or requests with adapters, wait for a change of the adapters, which has been under way "
      "for longer than 1ns.");
  EXPECT_EQ(report.why, "the workers read files, while steps are computed");
  EXPECT_EQ(engine.AbortCall(), absl::OkStatus());
  EXPECT_EQ(load.get(), absl::AbortedError(kEndedByOperator));
  EXPECT_EQ(pause.get(), absl::OkStatus());
  EXPECT_THAT(executor.recoveries(), testing::IsEmpty()) << "no worker is lost";
  executor.HoldAdapterReads(false);
  ASSERT_TRUE(engine.Resume().ok());
  EXPECT_EQ(registry->Load("third", "/third", false), absl::OkStatus());
}

}  // namespace
}  // namespace somnus
