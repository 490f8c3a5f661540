// Requests that wait for an adapter: for a place at the workers, for the read of the files, or for room in
// the engine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "coordinator/adapters/adapter_registry.h"
#include "tests/engine/engine_adapters_fixture.h"

namespace somnus {
namespace {

TEST_F(EngineAdaptersTest, TheLeastRecentlyUsedAdapterIsForgottenAndReadAgain) {
  BeginWith({"poet", "lawyer"}, 2);
  const std::string salt = (*registry_->Acquire("poet"))->salt;
  ASSERT_EQ(Load("third"), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=third");
  EXPECT_EQ(Names(), "lawyer? poet third ");
  ExpectAnswer(Ask("lawyer"));
  EXPECT_EQ(LastCall(), "adapters 2=third 1=lawyer");
  ExpectAnswer(Ask("poet"));
  EXPECT_EQ(LastCall(), "adapters 1=lawyer 2=poet");
  EXPECT_EQ((*registry_->Acquire("poet"))->salt, salt) << "the same files: cached prefixes stay of use";
  EXPECT_EQ(registry_->num_reads_again(), 2);
  ASSERT_EQ(registry_->Unload("third"), absl::OkStatus()) << "that is not held";
  EXPECT_EQ(Names(), "lawyer poet ");
}

TEST_F(EngineAdaptersTest, AnAdapterWithOpenRequestsKeepsItsPlaceAndTheOthersTakeTurns) {
  BeginWith({"poet", "lawyer"}, 1);
  const Ticket first = AskPaused("lawyer");
  const Ticket second = Ask("poet");
  while (Names() != "lawyer? poet? ") absl::SleepFor(absl::Milliseconds(1));
  const Ticket third = Ask("lawyer", "later"), base = Ask("", "base");
  EXPECT_EQ(LastCall(), "adapters 1=lawyer") << "the open request keeps the place";
  AwaitWaiting(4);
  EXPECT_EQ(registry_->List()[0].num_waiting, 1) << "third, not yet in the engine";
  ASSERT_TRUE(engine_->Resume().ok());
  for (const Ticket* ticket : {&first, &second, &third, &base}) ExpectAnswer(*ticket);
  EXPECT_EQ(LastCall(), "adapters 1=lawyer");
  AwaitWaiting(0);
  EXPECT_EQ(registry_->List()[0].num_waiting, 0);
}

TEST_F(EngineAdaptersTest, AForgottenAdapterThatIsStillHeldComesBackOnceNobodyWaitsForItsPlace) {
  BeginWith({"poet", "lawyer"}, 1);
  const size_t num_calls = executor_.lifecycle_calls().size();
  const Ticket first = AskPaused("lawyer"), left = Ask("poet", "left");
  while (Names() != "lawyer? poet? ") absl::SleepFor(absl::Milliseconds(1));
  const Ticket second = Ask("lawyer");
  engine_->Abort("left");
  ASSERT_TRUE(left.sink->Wait());
  while (Names() != "lawyer poet? ") absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(first.sink->done());
  ASSERT_TRUE(engine_->Resume().ok());
  for (const Ticket* ticket : {&first, &second}) ExpectAnswer(*ticket);
  EXPECT_EQ(executor_.lifecycle_calls().size(), num_calls) << "nothing is read";
}

TEST_F(EngineAdaptersTest, AnEngineWithoutRoomGetsWaitingRequestsLater) {
  BeginWith({"poet", "lawyer"}, 1);
  ASSERT_TRUE(engine_->Pause({}).ok());
  const auto max_num_waiting = options_.queue.max_num_waiting;
  std::vector<Ticket> tickets;
  for (int32_t i = 0; i < max_num_waiting; ++i) tickets.push_back(Ask(""));
  const Ticket aborted = Ask("poet", "aborted");
  for (int i = 0; i < 2; ++i) {
    tickets.push_back(Ask("poet"));
    ASSERT_EQ(submitted_, absl::OkStatus()) << "also while an earlier request is offered to the engine";
  }
  while (Names() != "lawyer? poet ") absl::SleepFor(absl::Milliseconds(1));
  engine_->Abort("aborted");
  ASSERT_TRUE(aborted.sink->Wait());
  EXPECT_EQ(aborted.sink->reason(), FinishReason::kAbort);
  AwaitWaiting(max_num_waiting + 2);
  ASSERT_TRUE(engine_->Resume().ok());
  for (const Ticket& ticket : tickets) ExpectAnswer(ticket);
}

TEST_F(EngineAdaptersTest, WaitingRequestsCountWhateverBecomesOfTheirAdapter) {
  BeginWith({"poet"}, 1);
  registry_->NoteWaiting("poet", 1);
  ASSERT_EQ(registry_->Unload("poet"), absl::OkStatus());
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  registry_->NoteWaiting("poet", 1);
  EXPECT_EQ(registry_->List().front().num_waiting, 2);
  registry_->NoteWaiting("poet", -1);
  EXPECT_EQ(registry_->List().front().num_waiting, 1);
}

TEST_F(EngineAdaptersTest, FilesThatHaveChangedOrGoneAreAnErrorOfTheirRequestsAlone) {
  BeginWith({"poet", "lawyer", "third"}, 1, absl::Minutes(1));
  executor_.ChangeAdapterFiles("/poet");
  ExpectError(Ask("poet"), absl::StatusCode::kDataLoss, "files have changed");
  Ask("poet");
  EXPECT_TRUE(absl::IsDataLoss(submitted_)) << "no second try at once: " << submitted_;
  ExpectAnswer(Ask("lawyer"));
  ASSERT_EQ(Load("poet", /*in_place=*/true), absl::OkStatus());
  ExpectAnswer(Ask("poet"));
  executor_.FailNextLifecycleCall(absl::NotFoundError("rank 0: /third: no such file"));
  const Ticket gone = Ask("third");
  ExpectError(gone, absl::StatusCode::kDataLoss, "files have gone");
  EXPECT_EQ(std::string(gone.sink->error().message()).find("/third"), std::string::npos)
      << "no path for clients";
}

TEST_F(EngineAdaptersTest, EveryErrorOfFilesIsAnAnswerAtOnce) {
  BeginWith({"poet", "lawyer"}, 1);
  executor_.FailNextLifecycleCall(absl::FailedPreconditionError("rank 0: cannot open it: permission denied"));
  const size_t num_calls = executor_.lifecycle_calls().size();
  ExpectError(Ask("poet"), absl::StatusCode::kDataLoss, "unreadable");
  EXPECT_EQ(executor_.lifecycle_calls().size(), num_calls + 1) << "the workers do not try again";
}

TEST_F(EngineAdaptersTest, TwoAdaptersWhoseFilesHaveChangedCostNoRecovery) {
  BeginWith({"poet", "lawyer"}, 1);
  for (const char* path : {"/poet", "/lawyer"}) executor_.ChangeAdapterFiles(path);
  ExpectError(Ask("poet"), absl::StatusCode::kDataLoss, "files have changed");
  ExpectAnswer(Ask("", "base"));
  EXPECT_THAT(executor_.recoveries(), testing::IsEmpty()) << "nobody needs the adapter that made room";
  ExpectError(Ask("lawyer"), absl::StatusCode::kDataLoss, "files have changed");
  EXPECT_THAT(executor_.recoveries(), testing::IsEmpty());
}

TEST_F(EngineAdaptersTest, AnAdapterThatWorkersAreNotReadyForHoldsUpNoOther) {
  BeginWith({"poet", "lawyer", "third"}, 1);
  executor_.HoldLifecycle(true);
  const Ticket slow = Ask("poet"), other = Ask("lawyer");
  while (LastCall() != "adapters 1=poet") absl::SleepFor(absl::Milliseconds(1));
  executor_.FailNextLifecycleCall(absl::DeadlineExceededError("rank 0: not yet"));
  executor_.HoldLifecycle(false);
  ExpectAnswer(other);
  ExpectAnswer(slow);
  const std::vector<std::string> calls = executor_.lifecycle_calls();
  EXPECT_THAT(std::vector<std::string>(calls.end() - 3, calls.end()),
              testing::ElementsAre("adapters 1=poet", "adapters 1=lawyer", "adapters 1=poet"));
}

TEST_F(EngineAdaptersTest, WorkersThatAreNotReadyForTooLongAreAnError) {
  registry_options_.ready_timeout = absl::ZeroDuration();
  BeginWith({"poet", "lawyer"}, 1);
  executor_.FailNextLifecycleCall(absl::DeadlineExceededError("rank 0: not yet"));
  ExpectError(Ask("poet"), absl::StatusCode::kUnavailable, "the workers are not ready");
}

TEST_F(EngineAdaptersTest, EachRequestThatWaitsAloneHasTheWholePatience) {
  const auto impatient = std::make_shared<AdapterRegistry>(
      loop_, AdapterRegistryOptions{.max_adapters = 1, .ready_timeout = absl::Milliseconds(1)});
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(impatient->Load(name, "/x", false), absl::OkStatus());
  for (int request = 0; request < 2; ++request) {
    impatient->NoteWaiting("poet", 1);
    executor_.FailNextLifecycleCall(absl::DeadlineExceededError("rank 0: not yet"));
    const AdapterRegistry::Brought brought = impatient->Bring("poet", [] { return true; });
    ASSERT_TRUE(brought.adapter.ok()) << brought.adapter.status();
    EXPECT_EQ(*brought.adapter, nullptr) << "to be asked again";
    impatient->NoteWaiting("poet", -1);
  }
}

// The earlier request has the old adapter, and is not in the engine yet.
TEST_F(EngineAdaptersTest, ARequestAfterALoadInPlaceGetsTheNewAdapterWhileAnEarlierOneIsOnItsWay) {
  Begin(2);
  ASSERT_EQ(registry_->Load("poet", "/old", false), absl::OkStatus());
  for (const char* name : {"lawyer", "third"}) ASSERT_EQ(Load(name), absl::OkStatus());
  ASSERT_EQ(Names(), "lawyer poet? third ");
  Ticket late = MakeTicket("late", 5, 3);
  late.request.adapter_name = "poet";
  gate_->SetBeforeSubmit([&] {
    EXPECT_EQ(registry_->Load("poet", "/new", /*in_place=*/true), absl::OkStatus());
    EXPECT_EQ(engine_->Submit(late.request), absl::OkStatus());
  });
  ExpectAnswer(Ask("poet", "early"));
  ExpectAnswer(late);
  EXPECT_EQ(gate_->PathOf("early"), "/old");
  EXPECT_EQ(gate_->PathOf("late"), "/new");
}

TEST_F(EngineAdaptersTest, ARequestAfterAnUnloadIsNotServedWhileAnEarlierOneIsOnItsWay) {
  BeginWith({"poet", "lawyer"}, 1, absl::Minutes(1));
  Ticket late = MakeTicket("late", 5, 3);
  late.request.adapter_name = "poet";
  std::future<absl::Status> unloaded;
  absl::Status refused;
  gate_->SetBeforeSubmit([&] {
    unloaded = StartUnload("poet");
    refused = engine_->Submit(late.request);
  });
  ExpectAnswer(Ask("poet", "early"));
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_EQ(unloaded.get(), absl::OkStatus());
}

TEST_F(EngineAdaptersTest, TheErrorOfAnUnloadedAdapterIsNotThatOfTheNextOneOfItsName) {
  BeginWithForgottenPoet();
  Ticket late = MakeTicket("late", 5, 3);
  late.request.adapter_name = "poet";
  const Ticket early = Ask("poet", "early");
  AwaitReadOfPoet();
  gate_->SetBeforeState([&] {
    EXPECT_EQ(registry_->Unload("poet"), absl::OkStatus());
    EXPECT_EQ(registry_->Load("poet", "/new", false), absl::OkStatus());
    EXPECT_EQ(engine_->Submit(late.request), absl::OkStatus());
  });
  executor_.FailNextLifecycleCall(absl::NotFoundError("rank 0: /poet: no such file"));
  executor_.HoldLifecycle(false);
  ExpectAnswer(late);
  EXPECT_EQ(gate_->PathOf("late"), "/new");
  ASSERT_TRUE(early.sink->Wait());
  ExpectAnswer(Ask("lawyer"));  // which takes the place of the new adapter
  ExpectAnswer(Ask("poet", "again"));
}

TEST_F(EngineAdaptersTest, WaitsEndByAbortDeadlineAndUnload) {
  BeginWith({"poet", "lawyer"}, 1);
  const Ticket first = AskPaused("lawyer");
  const Ticket aborted = Ask("poet", "aborted");
  Ticket late = MakeTicket("late", 5, 3);
  late.request.adapter_name = "poet";
  late.request.deadline = MonotonicNow() + absl::Milliseconds(50);
  ASSERT_TRUE(engine_->Submit(late.request).ok());
  const Ticket last = Ask("poet", "last");
  engine_->Abort("aborted");
  ASSERT_TRUE(aborted.sink->Wait());
  EXPECT_EQ(aborted.sink->reason(), FinishReason::kAbort);
  ExpectError(late, absl::StatusCode::kDeadlineExceeded, "deadline");
  ASSERT_EQ(registry_->Unload("poet"), absl::OkStatus());
  ExpectError(last, absl::StatusCode::kNotFound, "no longer served");
  EXPECT_THAT(observer_.finished(), testing::UnorderedElementsAre("aborted", "late", "last"))
      << "for metrics";
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectAnswer(first);
  ExpectAnswer(Ask("lawyer", "again"));
}

TEST_F(EngineAdaptersTest, WaitsEndWhileTheWorkersRead) {
  BeginWithForgottenPoet();
  const Ticket aborted = Ask("poet", "aborted"), patient = Ask("poet");
  AwaitReadOfPoet();
  Ticket late = MakeTicket("late", 5, 3);
  late.request.adapter_name = "poet";
  late.request.deadline = MonotonicNow() + absl::Milliseconds(50);
  ASSERT_TRUE(engine_->Submit(late.request).ok());
  engine_->Abort("aborted");
  ASSERT_TRUE(aborted.sink->Wait());
  EXPECT_EQ(aborted.sink->reason(), FinishReason::kAbort);
  ExpectError(late, absl::StatusCode::kDeadlineExceeded, "deadline");
  executor_.HoldLifecycle(false);
  ExpectAnswer(patient);
}

TEST_F(EngineAdaptersTest, AnEndDoesNotWaitForWorkersThatRead) {
  BeginWithForgottenPoet();
  const Ticket ticket = Ask("poet");
  AwaitReadOfPoet();
  engine_->DrainAndStop(absl::ZeroDuration());
  ExpectError(ticket, absl::StatusCode::kUnavailable, "");
  executor_.HoldLifecycle(false);
}

TEST_F(EngineAdaptersTest, WaitsAreBoundedAndEndWithTheEngine) {
  BeginWith({"poet", "lawyer"}, 1, absl::ZeroDuration(), QueueLimits{.max_num_waiting = 1});
  const Ticket first = AskPaused("lawyer");
  const Ticket second = Ask("poet");
  Ask("poet", "too many");
  EXPECT_TRUE(absl::IsResourceExhausted(submitted_)) << submitted_;
  engine_->DrainAndStop(absl::ZeroDuration());
  ExpectError(second, absl::StatusCode::kUnavailable, "");
  Ask("poet", "too late");
  EXPECT_TRUE(absl::IsUnavailable(submitted_)) << submitted_;
}

}  // namespace
}  // namespace somnus
