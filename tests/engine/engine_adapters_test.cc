// Adapters of a served model: their names, their places at the workers, and the waits for a place and for
// open requests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "coordinator/adapters/adapter_engine.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/engine/group_holdings.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using testing::HasSubstr;

// An engine over another one, which does `before_submit` before the next submission, and `before_state`
// before the next question for the state, each once.
class GatedEngine : public Engine {
 public:
  explicit GatedEngine(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  void SetBeforeSubmit(std::function<void()> before) {
    absl::MutexLock lock(&mu_);
    before_submit_ = std::move(before);
  }
  void SetBeforeState(std::function<void()> before) {
    absl::MutexLock lock(&mu_);
    before_state_ = std::move(before);
  }

  // The path of the adapter that the request had at its submission.
  std::string PathOf(const std::string& id) const {
    absl::MutexLock lock(&mu_);
    const auto path = paths_.find(id);
    return path == paths_.end() ? "" : path->second;
  }

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override {
    RunOnce(&before_submit_);
    {
      absl::MutexLock lock(&mu_);
      for (const EngineRequest& request : requests)
        paths_[request.id] = request.adapter == nullptr ? "" : request.adapter->path;
    }
    return engine_->SubmitAll(std::move(requests));
  }
  void Abort(const std::string& id) override { engine_->Abort(id); }
  EngineState state() const override {
    RunOnce(&before_state_);
    return engine_->state();
  }
  absl::Status Health() const override { return engine_->Health(); }
  void OnStateChange(std::function<void()> callback) override { engine_->OnStateChange(std::move(callback)); }
  EngineStats Stats() const override { return engine_->Stats(); }
  EngineViews View() override { return engine_->View(); }
  LifecycleResult Run(const LifecycleRequest& request) override { return engine_->Run(request); }
  PinnedPrefixes& pinned_prefixes() override { return engine_->pinned_prefixes(); }
  void DrainAndStop(absl::Duration grace) override { engine_->DrainAndStop(grace); }
  int32_t max_model_len() const override { return engine_->max_model_len(); }
  int32_t vocab_size() const override { return engine_->vocab_size(); }

 private:
  void RunOnce(std::function<void()>* before) const {
    std::function<void()> once;
    {
      absl::MutexLock lock(&mu_);
      once = std::exchange(*before, nullptr);
    }
    if (once) once();
  }

  const std::shared_ptr<Engine> engine_;
  mutable absl::Mutex mu_;
  mutable std::function<void()> before_submit_, before_state_;  // under mu_
  std::map<std::string, std::string> paths_ ABSL_GUARDED_BY(mu_);
};

class EngineAdaptersTest : public ::testing::Test {
 protected:
  EngineAdaptersTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    executor_.SetRecovery(FakeExecutor::Recovery::kSucceeds);
    loop_ = std::make_shared<EngineLoop>(options_, &executor_, nullptr);
    gate_ = std::make_shared<GatedEngine>(loop_);
  }
  ~EngineAdaptersTest() override {
    engine_ = nullptr;
    loop_->DrainAndStop(absl::ZeroDuration());
  }

  // To be called once: makes the registry, and the engine over the loop.
  void Begin(int32_t max_adapters, absl::Duration unload_timeout = absl::ZeroDuration(),
             const QueueLimits& limits = {}) {
    registry_options_.max_adapters = max_adapters;
    registry_options_.unload_timeout = unload_timeout;
    registry_ = std::make_shared<AdapterRegistry>(gate_, registry_options_);
    engine_ = std::make_unique<AdapterEngine>(gate_, registry_, limits, &observer_);
  }
  // One place, which another adapter has taken from "poet". The workers answer no call until they are told
  // to.
  void BeginWithForgottenPoet() {
    Begin(1);
    ASSERT_EQ(Load("poet"), absl::OkStatus());
    ASSERT_EQ(Load("lawyer"), absl::OkStatus());
    executor_.HoldLifecycle(true);
  }
  void AwaitReadOfPoet() {
    while (LastCall() != "adapters 1=poet") absl::SleepFor(absl::Milliseconds(1));
  }
  absl::Status Load(const std::string& name, bool in_place = false) {
    return registry_->Load(name, "/" + name, in_place);
  }
  // A request with the adapter.
  Ticket Ask(const std::string& name, const std::string& id = "") {
    Ticket ticket = MakeTicket(id.empty() ? absl::StrCat("of ", name, " ", ++num_asked_) : id, 5, 3);
    ticket.request.adapter_name = name;
    submitted_ = engine_->Submit(ticket.request);
    return ticket;
  }
  // A request with the adapter, which is open until the pause ends.
  Ticket AskPaused(const std::string& name) {
    EXPECT_TRUE(engine_->Pause({}).ok());
    Ticket ticket = Ask(name);
    EXPECT_EQ(submitted_, absl::OkStatus());
    return ticket;
  }
  void ExpectAnswer(const Ticket& ticket) {
    EXPECT_EQ(submitted_, absl::OkStatus());
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket)) << ticket.sink->error();
  }
  void ExpectError(const Ticket& ticket, absl::StatusCode code, const std::string& text) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->error().code(), code);
    EXPECT_THAT(std::string(ticket.sink->error().message()), HasSubstr(text));
  }
  // The engine's loop shows its numbers a moment later.
  void AwaitWaiting(int32_t count) const {
    while (engine_->Stats().num_waiting != count) absl::SleepFor(absl::Milliseconds(1));
  }
  std::string LastCall() const { return executor_.lifecycle_calls().back(); }
  std::string Names() const {
    std::string names;
    for (const AdapterCard& card : registry_->List()) names += card.name + (card.held ? " " : "? ");
    return names;
  }
  std::string PathOf(const std::string& name) const {
    for (const AdapterCard& card : registry_->List()) {
      if (card.name == name) return card.path;
    }
    return "";
  }

  const EngineOptions options_;
  FakeExecutor executor_;
  std::shared_ptr<EngineLoop> loop_;
  std::shared_ptr<GatedEngine> gate_;  // over loop_
  AdapterRegistryOptions registry_options_{.retry_pause = absl::Minutes(1)};
  std::shared_ptr<AdapterRegistry> registry_;
  RecordingObserver observer_;  // of the requests that end before they are in the loop
  std::unique_ptr<AdapterEngine> engine_;
  absl::Status submitted_;
  int num_asked_ = 0;
};

TEST_F(EngineAdaptersTest, NamesAreShownOnceTheWorkersHaveTheAdapter) {
  Begin(2);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
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

TEST(EngineAdaptersReadyTest, ALoadThatDoesNotEndIsNotReady) {
  EngineOptions options = SmallEngine();
  options.step_stall = absl::Seconds(60);
  absl::Mutex mu;
  MonotonicTime now = absl::Seconds(5), stood_still = absl::ZeroDuration();
  const absl::Time begin = absl::FromUnixSeconds(1'800'000'000);
  options.running_now = [&] {
    absl::MutexLock lock(&mu);
    return now - stood_still;
  };
  options.monotonic_now = [&] {
    absl::MutexLock lock(&mu);
    return now;
  };
  options.now = [&] {
    absl::MutexLock lock(&mu);
    return begin + (now - absl::Seconds(5));
  };
  const auto pass = [&](absl::Duration duration, bool stands_still) {
    absl::MutexLock lock(&mu);
    now += duration;
    if (stands_still) stood_still += duration;
  };
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
  pass(absl::Seconds(61), /*stands_still=*/false);
  EXPECT_EQ(loop->Stats().stall, absl::OkStatus()) << "no request waits while the workers read the files";
  executor.HoldAdapterReads(false);
  while (executor.lifecycle_calls().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(loop->Stats().stall, absl::OkStatus());
  pass(absl::Hours(1), /*stands_still=*/true);
  EXPECT_EQ(loop->Stats().stall, absl::OkStatus()) << "a process that was stopped has not loaded";
  pass(absl::Seconds(61), /*stands_still=*/false);
  const StateReport report = ReportState(loop->Stats());
  EXPECT_EQ(report.since, begin + absl::Seconds(61));
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

TEST_F(EngineAdaptersTest, BadCallsChangeNothing) {
  Begin(2);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
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
  Begin(1);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
  const absl::Status full = Load("third");
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("--max-lora-names"));
  EXPECT_EQ(Load("poet", /*in_place=*/true), absl::OkStatus());
  ASSERT_EQ(registry_->Unload("poet"), absl::OkStatus());
  EXPECT_EQ(Load("third"), absl::OkStatus());
}

TEST_F(EngineAdaptersTest, AnUnloadThatRequestsHoldUpChangesNothing) {
  Begin(1);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
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
  std::future<absl::Status> unloaded =
      std::async(std::launch::async, [&] { return registry_->Unload("poet"); });
  while (registry_->Knows("poet")) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(registry_->Load("poet", "/new", false), absl::OkStatus());
  EXPECT_THAT(std::string(unloaded.get().message()), HasSubstr("another one has its name now"));
  EXPECT_EQ(PathOf("poet"), "/new");
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectAnswer(ticket);
}

TEST_F(EngineAdaptersTest, AnUnloadWaitsForOpenRequests) {
  Begin(1, absl::Minutes(1));
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  const Ticket ticket = AskPaused("poet");
  std::future<absl::Status> unloaded =
      std::async(std::launch::async, [&] { return registry_->Unload("poet"); });
  while (registry_->Knows("poet")) absl::SleepFor(absl::Milliseconds(1));
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
  while (LastCall() != "adapters 2=poet 1=poet") {  // the place of the old one is free again
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

TEST_F(EngineAdaptersTest, ARecoveryBringsAdaptersBack) {
  Begin(2);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  executor_.Lose(absl::UnavailableError("rank 1 is gone"));
  ExpectAnswer(Ask("", "after"));
  const std::vector<HeldAdapter> held = executor_.recovered().adapters;
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].path, "/poet");
  EXPECT_EQ(held[0].id, (*registry_->Acquire("poet"))->id);
  EXPECT_EQ(held[0].fingerprint, "/poet 0") << "a new worker must not read other files";
}

TEST_F(EngineAdaptersTest, TheLeastRecentlyUsedAdapterIsForgottenAndReadAgain) {
  Begin(2);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  ASSERT_EQ(Load("lawyer"), absl::OkStatus());
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
  Begin(1);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  ASSERT_EQ(Load("lawyer"), absl::OkStatus());
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

TEST_F(EngineAdaptersTest, FilesThatHaveChangedOrGoneAreAnErrorOfTheirRequestsAlone) {
  Begin(1, absl::Minutes(1));
  for (const char* name : {"poet", "lawyer", "third"}) ASSERT_EQ(Load(name), absl::OkStatus());
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

TEST_F(EngineAdaptersTest, AForgottenAdapterThatIsStillHeldComesBackOnceNobodyWaitsForItsPlace) {
  Begin(1);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
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
  Begin(1);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
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

TEST_F(EngineAdaptersTest, EveryErrorOfFilesIsAnAnswerAtOnce) {
  Begin(1);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
  executor_.FailNextLifecycleCall(absl::FailedPreconditionError("rank 0: cannot open it: permission denied"));
  const size_t num_calls = executor_.lifecycle_calls().size();
  ExpectError(Ask("poet"), absl::StatusCode::kDataLoss, "unreadable");
  EXPECT_EQ(executor_.lifecycle_calls().size(), num_calls + 1) << "the workers do not try again";
}

TEST_F(EngineAdaptersTest, AnAdapterThatWorkersAreNotReadyForHoldsUpNoOther) {
  Begin(1);
  for (const char* name : {"poet", "lawyer", "third"}) ASSERT_EQ(Load(name), absl::OkStatus());
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
  Begin(1);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
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

TEST_F(EngineAdaptersTest, WaitingRequestsCountWhateverBecomesOfTheirAdapter) {
  Begin(1);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  registry_->NoteWaiting("poet", 1);
  ASSERT_EQ(registry_->Unload("poet"), absl::OkStatus());
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  registry_->NoteWaiting("poet", 1);
  EXPECT_EQ(registry_->List().front().num_waiting, 2);
  registry_->NoteWaiting("poet", -1);
  EXPECT_EQ(registry_->List().front().num_waiting, 1);
}

TEST_F(EngineAdaptersTest, TwoAdaptersWhoseFilesHaveChangedCostNoRecovery) {
  Begin(1);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
  for (const char* path : {"/poet", "/lawyer"}) executor_.ChangeAdapterFiles(path);
  ExpectError(Ask("poet"), absl::StatusCode::kDataLoss, "files have changed");
  ExpectAnswer(Ask("", "base"));
  EXPECT_THAT(executor_.recoveries(), testing::IsEmpty()) << "nobody needs the adapter that made room";
  ExpectError(Ask("lawyer"), absl::StatusCode::kDataLoss, "files have changed");
  EXPECT_THAT(executor_.recoveries(), testing::IsEmpty());
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
  Begin(1, absl::Minutes(1));
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
  Ticket late = MakeTicket("late", 5, 3);
  late.request.adapter_name = "poet";
  std::future<absl::Status> unloaded;
  absl::Status refused;
  gate_->SetBeforeSubmit([&] {
    unloaded = std::async(std::launch::async, [&] { return registry_->Unload("poet"); });
    while (registry_->Knows("poet")) absl::SleepFor(absl::Milliseconds(1));
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

TEST_F(EngineAdaptersTest, StepsGoOnWhileTheWorkersReadAnAdapter) {
  Begin(2);
  executor_.HoldAdapterReads(true);
  std::future<absl::Status> loaded = std::async(std::launch::async, [&] { return Load("poet"); });
  while (executor_.adapter_reads().empty()) absl::SleepFor(absl::Milliseconds(1));
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

TEST_F(EngineAdaptersTest, ALossWhileTheWorkersReadAnAdapterBeginsTheReadAgain) {
  Begin(1);
  executor_.HoldAdapterReads(true);
  std::future<absl::Status> loaded = std::async(std::launch::async, [&] { return Load("poet"); });
  while (executor_.adapter_reads().empty()) absl::SleepFor(absl::Milliseconds(1));
  executor_.Lose(absl::UnavailableError("rank 0 is gone"));
  while (executor_.adapter_reads().size() < 2) absl::SleepFor(absl::Milliseconds(1));
  executor_.HoldAdapterReads(false);
  EXPECT_EQ(loaded.get(), absl::OkStatus());
  ExpectAnswer(Ask("poet"));
}

TEST_F(EngineAdaptersTest, AnAdapterThatANewWorkerCannotReadHoldsUpNoOther) {
  Begin(3);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  ASSERT_EQ(Load("lawyer"), absl::OkStatus());
  executor_.ChangeAdapterFiles("/poet");
  Held recovered;
  recovered.adapters.push_back(
      {.slot = 2, .id = (*registry_->Acquire("lawyer"))->id, .name = "lawyer", .path = "/lawyer"});
  executor_.SetRecovered(recovered);
  executor_.Lose(absl::UnavailableError("rank 1 is gone"));
  ExpectAnswer(Ask("", "after"));
  EXPECT_EQ(Names(), "lawyer poet? ");
  ExpectError(Ask("poet"), absl::StatusCode::kDataLoss, "files have changed");
  ASSERT_EQ(Load("third"), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 2=lawyer 1=third");
  EXPECT_EQ(Names(), "lawyer poet? third ");
  Ask("poet");
  EXPECT_TRUE(absl::IsDataLoss(submitted_)) << submitted_;
  ExpectAnswer(Ask("lawyer"));
}

TEST_F(EngineAdaptersTest, ARequestThatIsOpenWhenItsAdapterIsDroppedHearsWhy) {
  Begin(3);
  for (const char* name : {"poet", "lawyer"}) ASSERT_EQ(Load(name), absl::OkStatus());
  Ticket late = MakeTicket("late", 5, 3);  // on its way to the loop meanwhile
  late.request.adapter = *registry_->Acquire("poet");
  Held recovered;
  recovered.adapters.push_back(
      {.slot = 2, .id = (*registry_->Acquire("lawyer"))->id, .name = "lawyer", .path = "/lawyer"});
  recovered.dropped_adapters[late.request.adapter->id] = absl::NotFoundError("rank 1: /poet: no such file");
  executor_.SetRecovered(recovered);
  const Ticket dropped = AskPaused("poet"), kept = Ask("lawyer"), base = Ask("");
  executor_.Lose(absl::UnavailableError("rank 1 is gone"));
  ExpectError(dropped, absl::StatusCode::kDataLoss,
              "the adapter 'poet' cannot be read again: its files have gone");
  ASSERT_TRUE(loop_->Submit(late.request).ok());
  ExpectError(late, absl::StatusCode::kDataLoss, "its files have gone");
  ASSERT_TRUE(engine_->Resume().ok());
  for (const Ticket* ticket : {&kept, &base}) ExpectAnswer(*ticket);
  recovered.dropped_adapters.clear();
  executor_.SetRecovered(recovered);
  executor_.Lose(absl::UnavailableError("rank 0 is gone"));
  ExpectAnswer(Ask("", "after"));
  Ticket later = MakeTicket("later", 5, 3);
  later.request.adapter = late.request.adapter;
  ASSERT_TRUE(loop_->Submit(later.request).ok());
  ExpectError(later, absl::StatusCode::kDataLoss, "its files have gone");
}

TEST(DroppedAdaptersTest, TheCausesOfTheLatestAreKept) {
  GroupHoldings holdings(SmallEngine());
  for (uint64_t id = 1; id <= GroupHoldings::kMaxDroppedAdapters + 1; ++id) {
    Held recovered = holdings.held();
    recovered.dropped_adapters[id] = absl::NotFoundError("no such file");
    holdings.RestoreAdapters(recovered);
  }
  const auto why = [&](uint64_t id) {
    return std::string(holdings.WhyDropped({.id = id, .name = "poet"}).message());
  };
  EXPECT_THAT(why(2), HasSubstr("have gone"));
  EXPECT_THAT(why(1), HasSubstr("unreadable"));
}

TEST_F(EngineAdaptersTest, WaitsEndByAbortDeadlineAndUnload) {
  Begin(1);
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  ASSERT_EQ(Load("lawyer"), absl::OkStatus());
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

TEST_F(EngineAdaptersTest, ALossWhileAnAdapterIsReadAgainCostsNoRequest) {
  BeginWithForgottenPoet();
  const Ticket ticket = Ask("poet");
  AwaitReadOfPoet();
  executor_.Lose(absl::UnavailableError("rank 0 is gone"));
  executor_.HoldLifecycle(false);
  ExpectAnswer(ticket);
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
  Begin(1, absl::ZeroDuration(), QueueLimits{.max_num_waiting = 1});
  ASSERT_EQ(Load("poet"), absl::OkStatus());
  ASSERT_EQ(Load("lawyer"), absl::OkStatus());
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
