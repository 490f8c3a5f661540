#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/engine_test_util.h"
#include "tests/engine/process_clocks.h"

namespace somnus {
namespace {

class AsyncSchedulingTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OffAndOn, AsyncSchedulingTest, ::testing::Bool());

TEST_P(AsyncSchedulingTest, AnswersAreExactAndStepsOverlapAsAsked) {
  const EngineOptions options = SmallEngine(GetParam());
  FakeExecutor executor(SmallWorker(options));
  RecordingObserver observer;
  EngineLoop engine(options, &executor, &observer);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 12; ++i) tickets.push_back(MakeTicket(std::to_string(i), 3 + i * 3, 5 + i, i * 50));
  int64_t output_tokens = 0;
  for (Ticket& ticket : tickets) {
    ASSERT_TRUE(engine.Submit(ticket.request).ok());
    output_tokens += ticket.request.max_tokens;
  }
  for (Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength);
  }
  EXPECT_EQ(executor.max_in_flight(), GetParam() ? 2u : 1u);
  const EngineStats stats = engine.Stats();
  EXPECT_EQ(stats.state, EngineState::kAwake);
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(stats.total_blocks, 63);
  EXPECT_EQ(stats.generation_tokens, output_tokens);
  EXPECT_EQ(observer.finished().size(), 12u);
  EXPECT_EQ(observer.output_tokens(), output_tokens);
  EXPECT_EQ(observer.num_first_tokens(), 12);
  EXPECT_EQ(observer.delivered_tokens(), output_tokens);
  EXPECT_TRUE(observer.times_are_ordered());
  EXPECT_EQ(observer.step_tokens(), executor.num_computed_tokens());
}

TEST_P(AsyncSchedulingTest, EveryStepIsDescribed) {
  const EngineOptions options = SmallEngine(GetParam());
  FakeExecutor executor(SmallWorker(options));
  RecordingObserver observer;
  EngineLoop engine(options, &executor, &observer);
  const Ticket ticket = MakeTicket("a", 10, 5);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  engine.DrainAndStop(absl::Minutes(1));
  const std::vector<StepEvent> steps = observer.steps();
  ASSERT_GE(steps.size(), 5u);
  EXPECT_EQ(steps[0].num_tokens, 10);
  EXPECT_EQ(steps[0].num_new, 1);
  EXPECT_EQ(steps[0].num_decodes, 0);
  EXPECT_EQ(steps[0].num_running, 1);
  EXPECT_GT(steps[0].used_blocks, 0);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].step_id, steps[0].step_id + static_cast<int64_t>(i));
    EXPECT_EQ(steps[i].num_sequences, 1);
    EXPECT_LE(steps[i].sent, steps[i].replied - steps[i].duration);
    if (i == 0) continue;
    EXPECT_EQ(steps[i].num_new, 0);
    EXPECT_EQ(steps[i].num_decodes, 1);
    EXPECT_GE(steps[i].replied - steps[i].duration, steps[i - 1].replied) << "steps do not overlap";
  }
}

TEST_P(AsyncSchedulingTest, AbortEndsTheRequestWithinAStepAndFreesItsBlocks) {
  const EngineOptions options = SmallEngine(GetParam());
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  Ticket ticket = MakeTicket("a", 10, 150);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->WaitForTokens(3));
  engine.Abort("a");
  engine.Abort("nobody");
  ASSERT_TRUE(ticket.sink->Wait());
  if (ticket.sink->reason() == FinishReason::kAbort) {
    EXPECT_LT(ticket.sink->tokens().size(), 150u);
  }
  EXPECT_EQ(engine.Stats().used_blocks, 0);
  // The id is free again.
  Ticket again = MakeTicket("a", 10, 5);
  ASSERT_TRUE(engine.Submit(again.request).ok());
  ASSERT_TRUE(again.sink->Wait());
  EXPECT_EQ(again.sink->tokens(), Reference(again));
  EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
}

TEST_P(AsyncSchedulingTest, LogitsThatAreNotNumbersEndOneRequest) {
  constexpr int32_t kNanToken = 999;
  const EngineOptions options = SmallEngine(GetParam());
  FakeWorkerOptions worker = SmallWorker(options);
  worker.nan_token = kNanToken;
  FakeExecutor executor(worker);
  EngineLoop engine(options, &executor, nullptr);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 8; ++i) tickets.push_back(MakeTicket(std::to_string(i), 6, 10, i * 50));
  std::vector<int32_t> bad = tickets[3].request.prompt;
  bad[4] = kNanToken;
  tickets[3].request.prompt = bad;
  for (Ticket& ticket : tickets) ASSERT_TRUE(engine.Submit(ticket.request).ok());
  for (Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
    if (ticket.request.id == "3") continue;
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket)) << ticket.request.id;
  }
  EXPECT_EQ(tickets[3].sink->reason(), FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal(tickets[3].sink->error()));
  EXPECT_TRUE(tickets[3].sink->tokens().empty());
  EXPECT_EQ(engine.state(), EngineState::kAwake);
  EXPECT_EQ(engine.Stats().used_blocks, 0);
  ASSERT_TRUE(engine.Submit(MakeTicket("3", 6, 1).request).ok()) << "the id is free again";
}

TEST_P(AsyncSchedulingTest, SleepKeepsRequestsAndTheirTokens) {
  const EngineOptions options = SmallEngine(GetParam());
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  Ticket running = MakeTicket("running", 10, 120), queued = MakeTicket("queued", 10, 20, 400);
  ASSERT_TRUE(engine.Submit(running.request).ok());
  ASSERT_TRUE(running.sink->WaitForTokens(5));
  const auto freed = engine.Sleep({.level = 1});
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes().at("weights"), 200);
  EXPECT_EQ(engine.Stats().sleep_level, 1);
  const bool still_open = !running.sink->done();
  const int64_t steps = executor.num_steps_sent();
  if (still_open) {
    EXPECT_EQ(engine.state(), EngineState::kAsleep);
    EXPECT_EQ(engine.Stats().num_waiting, 1);
  }
  ASSERT_TRUE(engine.Submit(queued.request).ok());
  EXPECT_EQ(engine.Stats().used_blocks, 0);
  EXPECT_TRUE(engine.Sleep({.level = 1}).ok()) << "asleep already";
  ASSERT_TRUE(engine.WakeUp({"weights"}).ok());
  EXPECT_EQ(engine.state(), EngineState::kAsleep) << "the cache is still away";
  EXPECT_EQ(executor.num_steps_sent(), steps);
  ASSERT_TRUE(engine.WakeUp({}).ok());
  EXPECT_EQ(engine.state(), EngineState::kAwake);
  for (Ticket* ticket : {&running, &queued}) {
    ASSERT_TRUE(ticket->sink->Wait());
    EXPECT_EQ(ticket->sink->tokens(), Reference(*ticket));
  }
  EXPECT_EQ(executor.lifecycle_calls(),
            (std::vector<std::string>{"sleep 1", "wake weights", "wake kv_cache workspace"}));
}

TEST(EngineTest, AStepThatHangsIsNotHealthyLongBeforeItsDeadline) {
  EngineOptions options = SmallEngine();
  options.step_stall = absl::Seconds(60);
  options.step_timeout = absl::Hours(1);
  ProcessClocks clocks;
  clocks.Set(&options);
  FakeExecutor executor(SmallWorker(options));
  executor.Hold(true);
  EngineLoop engine(options, &executor, nullptr);
  Ticket ticket = MakeTicket("a", 5, 5);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  while (executor.num_waits() == 0) std::this_thread::yield();
  clocks.SetWallAhead(absl::Hours(24 * 365));
  clocks.PassWhileStopped(absl::Minutes(6));  // no rank's fault
  clocks.Pass(absl::Seconds(60));
  EXPECT_TRUE(engine.Health().ok()) << engine.Health();
  clocks.Pass(absl::Seconds(1));
  EXPECT_EQ(What(engine.Health()), "Step 1 has been under way for longer than 1m.");
  EXPECT_EQ(engine.state(), EngineState::kAwake) << "it may still end";
  executor.SetProgress(absl::UnavailableError("rank 1 (pid 7) has been in step 1 for longer than 1m"));
  EXPECT_EQ(What(engine.Health()), "rank 1 (pid 7) has been in step 1 for longer than 1m.");
  executor.SetProgress(absl::OkStatus());
  executor.Hold(false);
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  clocks.Pass(absl::Hours(9));
  EXPECT_TRUE(engine.Health().ok()) << "nothing is under way";
}

TEST(EngineTest, AdmissionIsAllOrNothingAndBounded) {
  EngineOptions options = SmallEngine();
  options.queue.max_num_waiting = 4;
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());  // so that all requests wait
  std::vector<Ticket> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(MakeTicket(std::to_string(i), 5, 3, i));
  const auto batch = [&](int from, int to) {
    std::vector<EngineRequest> requests;
    for (int i = from; i < to; ++i) requests.push_back(tickets[i].request);
    return requests;
  };
  EXPECT_TRUE(absl::IsResourceExhausted(engine.SubmitAll(batch(0, 5))));
  EXPECT_EQ(engine.Stats().num_waiting, 0);
  ASSERT_TRUE(engine.SubmitAll(batch(0, 3)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine.SubmitAll(batch(3, 5))));
  EXPECT_TRUE(absl::IsInvalidArgument(engine.SubmitAll(batch(2, 3)))) << "the id is live";
  ASSERT_TRUE(engine.SubmitAll(batch(3, 4)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine.Submit(tickets[4].request)));
  engine.Abort("0");
  ASSERT_TRUE(tickets[0].sink->Wait());
  EXPECT_EQ(tickets[0].sink->reason(), FinishReason::kAbort);
  ASSERT_TRUE(engine.Submit(tickets[4].request).ok()) << "the aborted one's room is free";
  ASSERT_TRUE(engine.WakeUp({}).ok());
  for (int i = 1; i < 5; ++i) {
    ASSERT_TRUE(tickets[i].sink->Wait());
    EXPECT_EQ(tickets[i].sink->tokens(), Reference(tickets[i]));
  }
  ASSERT_TRUE(engine.SubmitAll({}).ok());
}

TEST(EngineTest, TheQueueIsBoundedInTokensToo) {
  EngineOptions options = SmallEngine();
  options.queue.max_num_waiting_tokens = 20;
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());
  Ticket a = MakeTicket("a", 15, 1), b = MakeTicket("b", 6, 1);
  ASSERT_TRUE(engine.Submit(a.request).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine.Submit(b.request)));
}

TEST(EngineTest, PreemptedRequestsTakePlaceInTheQueue) {
  EngineOptions options = SmallEngine();
  options.queue.max_num_waiting = 3;
  options.scheduler.max_model_len = 400'000;  // so that running requests have not ended at their preemption
  options.scheduler.blocks.num_blocks = 250'000;
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  std::vector<Ticket> running;
  for (int i = 0; i < 2; ++i) {
    running.push_back(MakeTicket(std::to_string(i), 5, 300'000, 10 * i));
    ASSERT_TRUE(engine.Submit(running.back().request).ok());
    ASSERT_TRUE(running.back().sink->WaitForTokens(1));
  }
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok());  // preempts both
  Ticket third = MakeTicket("third", 5, 2), fourth = MakeTicket("fourth", 5, 2);
  ASSERT_TRUE(engine.Submit(third.request).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine.Submit(fourth.request)));
  ASSERT_TRUE(engine.WakeUp({}).ok());
  ASSERT_TRUE(third.sink->Wait());
  EXPECT_TRUE(engine.Submit(fourth.request).ok()) << "they run again";
  for (const Ticket& ticket : running) engine.Abort(ticket.request.id);
  for (const Ticket& ticket : running) ASSERT_TRUE(ticket.sink->Wait());
}

TEST(EngineTest, RefusesWhatCanNeverBeServed) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(engine.Submit(MakeTicket("a", 200, 1).request)));
  EXPECT_TRUE(absl::IsInvalidArgument(engine.Submit(MakeTicket("a", 0, 1).request)));
  EXPECT_TRUE(absl::IsInvalidArgument(engine.Submit(MakeTicket("a", 3, 1, 998).request))) << "id 1000";
}

TEST(EngineTest, AFailedStepFailsEveryOpenRequestWithTheReason) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  executor.FailStep(4, absl::InternalError("rank 1 (pid 77) failed step 4: out of luck"));
  EngineLoop engine(options, &executor, nullptr);
  executor.Hold(true);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 8; ++i) tickets.push_back(MakeTicket(std::to_string(i), 10, 100, i));
  for (Ticket& ticket : tickets) ASSERT_TRUE(engine.Submit(ticket.request).ok());
  executor.Hold(false);
  for (Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kError);
    EXPECT_TRUE(absl::IsUnavailable(ticket.sink->error()));
    EXPECT_NE(ticket.sink->error().message().find("rank 1 (pid 77)"), absl::string_view::npos);
  }
  EXPECT_EQ(engine.state(), EngineState::kFailed);
  EXPECT_NE(engine.Stats().error.find("out of luck"), std::string::npos);
  const absl::Status refused = engine.Submit(MakeTicket("late", 5, 5).request);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Sleep({.level = 1}).status()));
}

TEST(EngineTest, AHangingStepEndsAtItsDeadline) {
  EngineOptions options = SmallEngine();
  options.step_timeout = absl::Milliseconds(50);
  FakeExecutor executor(SmallWorker(options));
  executor.Hold(true);
  EngineLoop engine(options, &executor, nullptr);
  Ticket ticket = MakeTicket("a", 5, 5);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kError);
  EXPECT_EQ(engine.state(), EngineState::kFailed);
}

TEST(EngineTest, DrainFinishesWhatIsOpenAndRefusesTheRest) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  executor.Hold(true);
  EngineLoop engine(options, &executor, nullptr);
  Ticket ticket = MakeTicket("a", 5, 50);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  std::thread drain([&] { engine.DrainAndStop(absl::Minutes(1)); });
  while (engine.state() != EngineState::kDraining) std::this_thread::yield();
  EXPECT_TRUE(absl::IsUnavailable(engine.Submit(MakeTicket("b", 5, 5).request)));
  EXPECT_FALSE(ticket.sink->done());
  executor.Hold(false);
  drain.join();
  EXPECT_TRUE(ticket.sink->done());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  EXPECT_TRUE(absl::IsUnavailable(engine.Sleep({.level = 1}).status())) << "the loop is gone";
}

TEST(EngineTest, DrainAbortsWhatOutlivesTheGraceAndAHangingStep) {
  const EngineOptions options = SmallEngine();
  FakeExecutor executor(SmallWorker(options));
  executor.Hold(true);
  EngineLoop engine(options, &executor, nullptr);
  Ticket ticket = MakeTicket("a", 5, 50);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  while (executor.num_waits() == 0) std::this_thread::yield();
  engine.DrainAndStop(absl::ZeroDuration());
  EXPECT_TRUE(ticket.sink->done());
}

// Clients on many threads come, read and leave, with sleeps in between: every output is exact or cut short.
TEST(EngineTest, ManyClientsAtOnce) {
  EngineOptions options = SmallEngine();
  options.scheduler.blocks.num_blocks = 52;
  options.queue.max_num_waiting = 1000;
  FakeExecutor executor(SmallWorker(options));
  EngineLoop engine(options, &executor, nullptr);
  std::vector<std::thread> clients;
  for (int client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 40; ++i) {
        Ticket ticket = MakeTicket(std::to_string(client) + "." + std::to_string(i),
                                   1 + (client * 7 + i) % 40, 1 + i % 30, client * 40);
        ASSERT_TRUE(engine.Submit(ticket.request).ok());
        const bool vanishes = i % 3 == 0;
        if (vanishes) {
          ticket.sink->WaitForTokens(static_cast<size_t>(i % 5));
          engine.Abort(ticket.request.id);
        }
        ASSERT_TRUE(ticket.sink->Wait());
        std::vector<int32_t> expected = Reference(ticket);
        if (vanishes && ticket.sink->reason() == FinishReason::kAbort)
          expected.resize(ticket.sink->tokens().size());
        ASSERT_EQ(ticket.sink->tokens(), expected);
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(engine.Sleep({.level = 1 + i % 2}).ok());
    ASSERT_TRUE(engine.WakeUp({}).ok());
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(engine.Stats().used_blocks, 0);
  EXPECT_EQ(engine.state(), EngineState::kAwake);
}

}  // namespace
}  // namespace somnus
