// The self-check after a wake-up: when the check runs, the result that it is compared with, and the state of
// an engine that has woken with other memory than before the sleep.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using testing::HasSubstr;
using Calls = std::vector<std::string>;

constexpr uint64_t kGood = 7, kBad = 8;
const absl::Status kLoss = absl::UnavailableError("rank 0 (pid 77) was killed by signal 9 (Killed)");

class CheckObserver : public PassingObserver {
 public:
  CheckObserver() : PassingObserver(nullptr) {}
  void OnSelfCheck(const SelfCheckEvent& event) override {
    absl::MutexLock lock(&mu_);
    ++outcomes_[SelfCheckOutcomeName(event.outcome)];
  }
  std::map<std::string, int> outcomes() const {
    absl::MutexLock lock(&mu_);
    return outcomes_;
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, int> outcomes_ ABSL_GUARDED_BY(mu_);
};
using Outcomes = std::map<std::string, int>;

class EngineCheckTest : public ::testing::Test {
 protected:
  EngineCheckTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    options_.weights.path = "checkpoint";
    options_.wake_self_check = true;
    executor_.SetRecovery(FakeExecutor::Recovery::kSucceeds);
    Find(kGood);
  }

  void Start() { engine_ = std::make_unique<EngineLoop>(options_, &executor_, &observer_); }
  void Find(uint64_t fingerprint, bool bitwise = true, const std::string& machines = "cpu of a") {
    executor_.SetChecked({.fingerprint = fingerprint, .machines = machines, .bitwise = bitwise});
  }
  void ExpectServes() {
    EXPECT_EQ(engine_->state(), EngineState::kAwake);
    Ticket ticket = MakeTicket("serves", 5, 5);
    ASSERT_TRUE(engine_->Submit(ticket.request).ok());
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  void ExpectGivenUp() {
    EXPECT_EQ(engine_->state(), EngineState::kAsleep);
    EXPECT_EQ(engine_->Stats().sleep_level, 2);
    EXPECT_TRUE(engine_->Stats().residency.fully_asleep());
    EXPECT_FALSE(engine_->Health().ok());
  }
  // Calls since the last call of this function.
  Calls NewCalls() {
    const Calls all = executor_.lifecycle_calls();
    const Calls later(all.begin() + static_cast<int64_t>(num_seen_), all.end());
    num_seen_ = all.size();
    return later;
  }

  EngineOptions options_;
  FakeExecutor executor_;
  CheckObserver observer_;
  std::unique_ptr<EngineLoop> engine_;
  size_t num_seen_ = 0;
};

TEST_F(EngineCheckTest, NothingIsCheckedUnlessAskedFor) {
  options_.wake_self_check = false;
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(NewCalls(), (Calls{"sleep 1", "wake kv_cache weights workspace"}));
}

TEST_F(EngineCheckTest, AWakeUpComparesWithTheLoad) {
  Start();
  ExpectServes();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  const auto report = engine_->WakeUp({});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->ranks.size(), 1u) << "what it has woken is reported";
  EXPECT_EQ(NewCalls(), (Calls{"check", "sleep 1", "wake kv_cache weights workspace", "check"}));
  EXPECT_EQ(observer_.outcomes(), (Outcomes{{"taken", 1}, {"same", 1}}));
  ExpectServes();
}

TEST_F(EngineCheckTest, DamagedMemoryIsGivenUpWithItsBackups) {
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  Ticket waiting = MakeTicket("waiting", 5, 5);
  ASSERT_TRUE(engine_->Submit(waiting.request).ok());
  Find(kBad);
  NewCalls();
  const absl::Status status = engine_->WakeUp({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  for (const char* part : {"version 1 of the weights", "0000000000000008, not 0000000000000007",
                           "the next wake-up reads the checkpoint"})
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  EXPECT_EQ(NewCalls(), (Calls{"wake kv_cache weights workspace", "check", "sleep 2"}));
  ExpectGivenUp();
  EXPECT_FALSE(waiting.sink->done());
  EXPECT_EQ(engine_->WakeUp({}).status().code(), absl::StatusCode::kDataLoss) << "the checkpoint, too";
  ExpectGivenUp();
  EXPECT_EQ(executor_.num_steps_sent(), 0) << "nothing was computed meanwhile";
  Find(kGood);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ASSERT_TRUE(waiting.sink->Wait());
  EXPECT_EQ(waiting.sink->tokens(), Reference(waiting));
  EXPECT_EQ(observer_.outcomes(), (Outcomes{{"taken", 1}, {"refused", 2}, {"same", 1}}));
}

TEST_F(EngineCheckTest, ASequenceThatWasKeptIsComputedAgain) {
  options_.keep_kv_on_sleep = true;
  options_.scheduler.blocks.num_host_blocks = 64;
  Start();
  Ticket ticket = MakeTicket("a", 5, 150);
  ASSERT_TRUE(engine_->Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->WaitForTokens(1));
  ASSERT_TRUE(engine_->Sleep({}).ok());
  Find(kBad);
  EXPECT_TRUE(absl::IsDataLoss(engine_->WakeUp({}).status()));
  Find(kGood);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
}

TEST_F(EngineCheckTest, WhatCameFromAnUpdateMustBeBroughtAnew) {
  Start();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  ASSERT_TRUE((*update)->Finish().ok());
  ASSERT_TRUE(engine_->Sleep({}).ok());
  Find(kBad);
  const absl::Status status = engine_->WakeUp({}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("a reload or an update has to bring the weights"));
  ExpectGivenUp();
  ASSERT_TRUE(engine_->WakeUp({}).ok()) << "of memory alone";
  EXPECT_EQ(engine_->Stats().residency.state("weights"), TagState::kStale);
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  ExpectServes();
}

TEST_F(EngineCheckTest, NewWeightsHaveANewFingerprint) {
  Start();
  Find(kBad);
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  ExpectServes();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(observer_.outcomes(), (Outcomes{{"taken", 2}, {"same", 1}}));
}

TEST_F(EngineCheckTest, WeightsThatCameWhileTheCacheSleptAreCheckedOnceItIsThere) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine_->WakeUp({"weights"}, /*load_weights=*/false).ok());
  Find(kBad);
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok()) << "there is nothing to compare them with";
  ExpectServes();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  Find(kGood);
  EXPECT_TRUE(absl::IsDataLoss(engine_->WakeUp({}).status()));
}

TEST_F(EngineCheckTest, ItRunsOnceAllIsResidentAndNotForTheCacheAlone) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.tags = {"kv_cache"}}).ok());
  NewCalls();
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(NewCalls(), (Calls{"wake kv_cache"}));
  ASSERT_TRUE(engine_->Sleep({}).ok());
  ASSERT_TRUE(engine_->WakeUp({"weights"}).ok());
  ASSERT_TRUE(engine_->WakeUp({"workspace"}).ok());
  NewCalls();
  Find(kBad);
  EXPECT_TRUE(absl::IsDataLoss(engine_->WakeUp({"kv_cache"}).status()));
  EXPECT_EQ(NewCalls(), (Calls{"wake kv_cache", "check", "sleep 2"}));
  ExpectGivenUp();
}

TEST_F(EngineCheckTest, WhereTheSameBitsAreNotPromisedItServes) {
  Find(kGood, /*bitwise=*/false);
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  Find(kBad, /*bitwise=*/false);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectServes();
  EXPECT_EQ(observer_.outcomes(), (Outcomes{{"taken", 1}, {"different", 1}}));
}

TEST_F(EngineCheckTest, ABatchInvariantGpuPromisesThem) {
  options_.batch_invariant = true;
  Find(kGood, /*bitwise=*/false);
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  Find(kBad, /*bitwise=*/false);
  EXPECT_TRUE(absl::IsDataLoss(engine_->WakeUp({}).status()));
}

TEST_F(EngineCheckTest, OtherMachinesSayNothingOfTheseBits) {
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  Find(kBad, /*bitwise=*/true, "cpu of b");
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectServes();
  EXPECT_EQ(observer_.outcomes(), (Outcomes{{"taken", 2}}));
}

TEST_F(EngineCheckTest, ALossWithinTheCheckBeginsItAgain) {
  executor_.BeforeNextCheck([this] { executor_.Lose(kLoss); });
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  executor_.BeforeNextCheck([this] { executor_.Lose(kLoss); });
  NewCalls();
  Find(kBad);
  EXPECT_TRUE(absl::IsDataLoss(engine_->WakeUp({}).status()));
  EXPECT_EQ(NewCalls(), (Calls{"wake kv_cache weights workspace", "check", "check", "sleep 2"}));
  ExpectGivenUp();
  EXPECT_EQ(executor_.recoveries(), (Calls{"awake", "awake"}));
}

// The engine begins with a check, which must not find an executor that cannot tell of a recovery's end yet.
TEST_F(EngineCheckTest, ALossWithinTheFirstCallIsRecovered) {
  struct LateCallbacks : FakeExecutor {
    using FakeExecutor::FakeExecutor;
    void OnRecovered(std::function<void(absl::Status)> callback) override {
      absl::SleepFor(absl::Milliseconds(20));
      FakeExecutor::OnRecovered(std::move(callback));
    }
  };
  LateCallbacks executor(SmallWorker(options_));
  executor.SetRecovery(FakeExecutor::Recovery::kSucceeds);
  executor.SetChecked({.fingerprint = kGood, .machines = "cpu of a", .bitwise = true});
  executor.BeforeNextCheck([&] { executor.Lose(kLoss); });
  EngineLoop engine(options_, &executor, &observer_);
  ASSERT_TRUE(engine.Sleep({}).ok());  // in its turn behind the check
  EXPECT_EQ(executor.recoveries(), Calls{"awake"});
}

TEST_F(EngineCheckTest, WhatWasNotCheckedIsNotServed) {
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  // Each loss within a check begins the wake-up again, until the wake-up has been interrupted too often.
  std::function<void()> lose = [&] {
    executor_.BeforeNextCheck(lose);
    executor_.Lose(kLoss);
  };
  executor_.BeforeNextCheck(lose);
  EXPECT_EQ(engine_->WakeUp({}).status(), kLoss);
  executor_.BeforeNextCheck(nullptr);
  Ticket waiting = MakeTicket("waiting", 5, 5);
  ASSERT_TRUE(engine_->Submit(waiting.request).ok());
  EXPECT_TRUE(engine_->Stats().residency.awake());
  EXPECT_EQ(executor_.num_steps_sent(), 0);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ASSERT_TRUE(waiting.sink->Wait());
}

TEST_F(EngineCheckTest, AnEngineThatWasAdoptedAsleepTakesItWhenItWakes) {
  options_.residency.Slept({.level = 1});
  Start();
  executor_.Recover({options_.residency, options_.weights});  // the ranks sleep
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(NewCalls(), (Calls{"wake kv_cache weights workspace", "check"}));
  EXPECT_EQ(observer_.outcomes(), (Outcomes{{"taken", 1}}));
}

TEST_F(EngineCheckTest, ReportsWeightsOfAnotherVersionAsALoss) {
  Start();
  ASSERT_TRUE(engine_->Sleep({}).ok());
  executor_.SetWeightsVersion(5);
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(executor_.recoveries(), (Calls{"awake"})) << "which has brought version 1 back";
  ExpectServes();
}

}  // namespace
}  // namespace somnus
