// Reloads and updates of the weights, and the requests, the failures and the state meanwhile.

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "coordinator/engine/caller.h"
#include "tests/engine/engine_weights_fixture.h"

namespace somnus {
namespace {

TEST_F(EngineWeightsTest, AReloadGivesTheNextVersion) {
  Start();
  ExpectServes(1);
  EXPECT_EQ(engine_->Stats().weights_source, "old");
  EXPECT_EQ(engine_->ReloadWeights({.path = "new"})->version, 2);
  EXPECT_EQ(engine_->Stats().weights_source, "new");
  ExpectServes(2);
  EXPECT_EQ(engine_->ReloadWeights({.version = 7})->version, 7);
  EXPECT_EQ(engine_->Stats().weights_source, "new") << "the same once more";
  ExpectServes(7);
  EXPECT_EQ(executor_.lifecycle_calls(), (Calls{"reload new as 2", "reload new as 7"}));
  for (const int64_t version : {int64_t{-1}, std::numeric_limits<int64_t>::max()})
    EXPECT_TRUE(absl::IsInvalidArgument(engine_->ReloadWeights({.version = version}).status()));
  ExpectServes(7);
}

// Takes the name of the weights at each output, as the API does.
class NamingSink : public OutputSink {
 public:
  explicit NamingSink(std::shared_ptr<const WeightLabels> labels) : labels_(std::move(labels)) {}
  void OnOutput(RequestOutput output) override {
    if (!output.token_ids.empty()) {
      names_.insert(labels_->NameOf(output.weights_version));
      if (!began_.HasBeenNotified()) began_.Notify();
    }
    if (output.finish_reason != FinishReason::kNone) ended_.Notify();
  }
  void WaitForFirst() { began_.WaitForNotification(); }
  // Waits for the end.
  std::set<std::string> names() {
    ended_.WaitForNotification();
    return names_;
  }

 private:
  const std::shared_ptr<const WeightLabels> labels_;
  std::set<std::string> names_;
  absl::Notification began_, ended_;
};

TEST_F(EngineWeightsTest, NoTokenOfLabelledWeightsComesBeforeTheLabel) {
  options_.weight_labels = std::make_shared<WeightLabels>();
  Start();
  for (int64_t version = 1;; ++version) {
    const std::string before = version == 1 ? "1" : absl::StrCat("step-", version);
    const std::string after = absl::StrCat("step-", version + 1);
    const auto sink = std::make_shared<NamingSink>(options_.weight_labels);
    Ticket ticket = MakeTicket(absl::StrCat("a", version), 5, 190);
    ticket.request.sink = sink;
    ASSERT_TRUE(engine_->Submit(ticket.request).ok());
    sink->WaitForFirst();
    EXPECT_TRUE(engine_->ReloadWeights({.label = after, .mode = SleepMode::kKeep}).ok());
    const std::set<std::string> names = sink->names();
    if (names == std::set<std::string>{before}) continue;  // the request had ended
    EXPECT_EQ(names, (std::set<std::string>{before, after}));
    break;
  }
}

TEST_F(EngineWeightsTest, AChangeThatIsRefusedLabelsNothing) {
  options_.weight_labels = std::make_shared<WeightLabels>();
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_FALSE(engine_->ReloadWeights({.label = "step-2"}).ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(engine_->ReloadWeights({})->version, 2);
  EXPECT_EQ(options_.weight_labels->NameOf(2), "2");
}

TEST_F(EngineWeightsTest, NothingOfTheOldWeightsIsCached) {
  Start();
  for (const int32_t cached : {0, 32}) {
    Ticket ticket = MakeTicket("a", 33, 4);
    ASSERT_TRUE(engine_->Submit(ticket.request).ok());
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->num_cached_tokens(), cached);
  }
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  Ticket ticket = MakeTicket("b", 33, 4);
  ASSERT_TRUE(engine_->Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->num_cached_tokens(), 0);
}

TEST_F(EngineWeightsTest, WaitEndsOpenRequestsWithTheOldWeights) {
  Start();
  Ticket before = MakeTicket("before", 5, 60), after = MakeTicket("after", 5, 5);
  executor_.Hold(true);
  ASSERT_TRUE(engine_->Submit(before.request).ok());
  while (executor_.num_waits() == 0) std::this_thread::yield();
  std::thread reloading([&] { EXPECT_TRUE(engine_->ReloadWeights({}).ok()); });
  executor_.Hold(false);
  while (engine_->state() == EngineState::kAwake && engine_->Stats().weights_version == 1)
    std::this_thread::yield();
  ASSERT_TRUE(engine_->Submit(after.request).ok());
  reloading.join();
  ASSERT_TRUE(before.sink->Wait());
  EXPECT_EQ(before.sink->tokens(), Reference(before));
  EXPECT_EQ(before.sink->weights_versions(), std::set<int64_t>{1});
  ASSERT_TRUE(after.sink->Wait());
  EXPECT_EQ(after.sink->weights_versions(), std::set<int64_t>{2});
}

TEST_F(EngineWeightsTest, KeepGoesOnWithTheNewWeights) {
  Start();
  // The reload may come when the request has ended already: then the test tries again.
  for (int64_t version = 1; true; ++version) {
    Ticket ticket = MakeTicket("a", 5, 190);
    ASSERT_TRUE(engine_->Submit(ticket.request).ok());
    ASSERT_TRUE(ticket.sink->WaitForTokens(1));
    EXPECT_EQ(engine_->ReloadWeights({.mode = SleepMode::kKeep})->version, version + 1);
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    if (ticket.sink->weights_versions() == std::set<int64_t>{version}) continue;
    EXPECT_EQ(ticket.sink->weights_versions(), (std::set<int64_t>{version, version + 1}));
    break;
  }
}

TEST_F(EngineWeightsTest, AbortEndsOpenRequests) {
  Start();
  Ticket ticket = MakeTicket("a", 5, 150);
  executor_.Hold(true);
  ASSERT_TRUE(engine_->Submit(ticket.request).ok());
  while (executor_.num_waits() == 0) std::this_thread::yield();
  executor_.Hold(false);
  ASSERT_TRUE(engine_->ReloadWeights({.mode = SleepMode::kAbort}).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_TRUE(ticket.sink->reason() == FinishReason::kAbort ||
              ticket.sink->reason() == FinishReason::kLength);
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, WhatEveryRankRefusesChangesNothing) {
  Start();
  executor_.SetNextWeightsOutcome({.status = absl::InvalidArgumentError("no such file"), .untouched = true});
  EXPECT_EQ(engine_->ReloadWeights({.path = "none"}).status(), absl::InvalidArgumentError("no such file"));
  EXPECT_EQ(engine_->Stats().weights_source, "old");
  ExpectServes(1);
  executor_.SetNextWeightsOutcome({.status = absl::FailedPreconditionError("quantized"), .untouched = true});
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->BeginWeightUpdate({}).status()));
  ExpectServes(1);
}

TEST_F(EngineWeightsTest, AReloadThatOneRankFailsLeavesStaleWeightsUntilAnotherOneSucceeds) {
  Start();
  executor_.SetNextWeightsOutcome({.status = absl::InvalidArgumentError("rank 1: no such file")});
  const absl::Status status = engine_->ReloadWeights({.path = "new"}).status();
  EXPECT_TRUE(absl::IsInternal(status)) << "INVALID_ARGUMENT would say that nothing has changed";
  EXPECT_EQ(status.message(),
            "rank 1: no such file; the weights are stale until a reload or an update succeeds");
  ExpectStale();
  Ticket waiting = MakeTicket("waiting", 5, 5);
  ASSERT_TRUE(engine_->Submit(waiting.request).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->WakeUp({}).status())) << "ranks may have different files";
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->WakeForArrivals().status()));
  EXPECT_TRUE(engine_->Resume().ok());
  ExpectStale();
  EXPECT_EQ(executor_.num_steps_sent(), 0);
  EXPECT_EQ(engine_->ReloadWeights({}).value().version, 2);
  EXPECT_EQ(executor_.lifecycle_calls(), (Calls{"reload new as 2", "reload old as 2"}));
  ASSERT_TRUE(waiting.sink->Wait());
  EXPECT_EQ(waiting.sink->weights_versions(), std::set<int64_t>{2});
}

TEST_F(EngineWeightsTest, WeightsThatSleepAreWokenFirst) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->ReloadWeights({}).status()));
  const auto woken = engine_->WakeUp({"weights"}, /*load_weights=*/false);
  ASSERT_TRUE(woken.ok()) << woken.status();
  EXPECT_EQ(woken->tags, (std::map<std::string, TagOutcome>{{"weights", {TagState::kStale, true}}}));
  EXPECT_FALSE(engine_->WakeUp({"weights"}, false)->changed());
  EXPECT_EQ(engine_->ReloadWeights({.path = "new"})->version, 2);
  EXPECT_EQ(engine_->state(), EngineState::kAsleep) << "the KV cache sleeps";
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectServes(2);
  EXPECT_EQ(executor_.lifecycle_calls(),
            (Calls{"sleep 2", "wake weights unread", "reload new as 2", "wake kv_cache workspace"}));
}

TEST_F(EngineWeightsTest, AWakeUpReadsStaleWeightsThatNothingHasOverwritten) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine_->WakeUp({}, /*load_weights=*/false).ok());
  ExpectStale();
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  EXPECT_EQ(executor_.lifecycle_calls(),
            (Calls{"sleep 2", "wake kv_cache weights workspace unread", "wake weights"}));
  ExpectServes(1);
}

TEST_F(EngineWeightsTest, AnUpdateIsRelayedAndItsVersionServed) {
  Start();
  auto update = engine_->BeginWeightUpdate({.version = 9});
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_EQ(engine_->state(), EngineState::kWaking);
  EXPECT_EQ(engine_->Stats().weights_version, 0);
  Ticket waiting = MakeTicket("waiting", 5, 5);
  ASSERT_TRUE(engine_->Submit(waiting.request).ok());
  ASSERT_TRUE((*update)->Send(Chunk("a")).ok());
  ASSERT_TRUE((*update)->Send(Chunk("b")).ok());
  const absl::StatusOr<WeightsChange> change = (*update)->Finish();
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->version, 9);
  EXPECT_EQ(executor_.lifecycle_calls(), (Calls{"begin update", "chunk a", "chunk b", "finish update as 9"}));
  EXPECT_EQ(engine_->Stats().weights_source.rfind("update ", 0), 0u);
  ASSERT_TRUE(waiting.sink->Wait());
  EXPECT_EQ(waiting.sink->weights_versions(), std::set<int64_t>{9});
  update->reset();
  ExpectServes(9);
}

TEST_F(EngineWeightsTest, ADirectUpdateSaysWhereTheClientSends) {
  Start();
  auto update = engine_->BeginWeightUpdate({.port_token = "secret"});
  ASSERT_TRUE(update.ok()) << update.status();
  ASSERT_EQ((*update)->ports().size(), 1u);
  EXPECT_EQ((*update)->ports()[0].address(), "port for secret");
  ASSERT_TRUE((*update)->Finish(ReceivedWeights{.num_tensors = 3}).ok());
  EXPECT_EQ(executor_.lifecycle_calls(), (Calls{"begin update", "finish update of 3 as 2"}));
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, AnUpdateThatIsGivenUpLeavesStaleWeights) {
  Start();
  {
    auto update = engine_->BeginWeightUpdate({});
    ASSERT_TRUE(update.ok()) << update.status();
    ASSERT_TRUE((*update)->Send(Chunk("a")).ok());
  }
  ExpectStale();
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->WakeUp({"weights"}).status()));
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, AnUpdateThatCannotBeFinishedSaysWhy) {
  Start();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  executor_.FailNextChunk(absl::InvalidArgumentError("rank 0: no tensor 'x'"));
  EXPECT_EQ((*update)->Send(Chunk("x")).message(), "rank 0: no tensor 'x'");
  executor_.SetNextWeightsOutcome({.status = absl::InvalidArgumentError("rank 0: 'y' is missing")});
  const absl::Status status = (*update)->Finish().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  update->reset();
  ExpectStale();
}

// A file has no tensor of an update: a read of the old checkpoint would make ranks differ.
TEST_F(EngineWeightsTest, WeightsOfAnUpdateAreNeverReadFromTheCheckpoint) {
  Start();
  const auto apply = [&] {
    auto update = engine_->BeginWeightUpdate({});
    ASSERT_TRUE(update.ok()) << update.status();
    ASSERT_TRUE((*update)->Finish().ok());
  };
  apply();
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectServes(2);
  ASSERT_TRUE(engine_->Sleep({.level = 2, .force = true}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->WakeUp({}, /*load_weights=*/true).status()));
  EXPECT_EQ(engine_->WakeUp({})->tags["weights"].state, TagState::kStale);
  ExpectStale();
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->WakeUp({}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Restart())) << "not awake";
  apply();
  ExpectServes(3);
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Restart())) << "new workers could not have them";
  ExpectServes(3);
  EXPECT_EQ(
      executor_.lifecycle_calls(),
      (Calls{"begin update", "finish update as 2", "sleep 1", "wake kv_cache weights workspace", "sleep 2",
             "wake kv_cache weights workspace unread", "begin update", "finish update as 3"}));
}

TEST_F(EngineWeightsTest, ASleepThatSparesTheOnlyCopyDiscardsWhatAFileHasAlone) {
  Start();
  const SleepRequest spares = {.level = 2, .spares_only_copy = true};
  EXPECT_FALSE(engine_->Stats().only_copy);
  ASSERT_TRUE(engine_->Sleep(spares).ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ASSERT_TRUE((*engine_->BeginWeightUpdate({}))->Finish().ok());
  EXPECT_TRUE(engine_->Stats().only_copy);
  EXPECT_TRUE(absl::IsAborted(engine_->Sleep(spares).status()));
  ExpectServes(2);
  ASSERT_TRUE(engine_->Sleep({.level = 1, .spares_only_copy = true}).ok());
  EXPECT_TRUE(absl::IsAborted(engine_->Sleep(spares).status())) << "nor does it go on to level 2";
  EXPECT_TRUE(engine_->Stats().only_copy);
  EXPECT_FALSE(engine_->Stats().needs_weights);
  ASSERT_TRUE(engine_->Sleep({.level = 2, .force = true}).ok());
  EXPECT_FALSE(engine_->Stats().only_copy);
  EXPECT_TRUE(engine_->Stats().needs_weights);
  EXPECT_TRUE(engine_->Sleep(spares).ok()) << "there is nothing to lose any more";
}

TEST_F(EngineWeightsTest, AChangeThatNobodyWantsAnyMoreChangesNothing) {
  Start();
  executor_.SetStepTime(absl::Milliseconds(1));
  const CallerScope gone({.name = "client", .has_left = [] { return true; }});
  Ticket open = MakeTicket("open", 5, 50);
  ASSERT_TRUE(engine_->Submit(open.request).ok());
  EXPECT_TRUE(absl::IsCancelled(engine_->BeginWeightUpdate({.mode = SleepMode::kWait}).status()));
  EXPECT_TRUE(absl::IsCancelled(engine_->ReloadWeights({.mode = SleepMode::kWait}).status()));
  ASSERT_TRUE(open.sink->Wait());
  EXPECT_EQ(open.sink->reason(), FinishReason::kLength);
  EXPECT_EQ(executor_.lifecycle_calls(), Calls());
  ExpectServes(1);
}

// The update's client may not have noticed the end when a second update has begun.
TEST_F(EngineWeightsTest, APauseHoldsBeyondAReload) {
  Start();
  ASSERT_TRUE(engine_->Pause({}).ok());
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  EXPECT_EQ(engine_->state(), EngineState::kPaused);
  ASSERT_TRUE(engine_->Resume().ok());
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, StaleWeightsSleepWithoutABackup) {
  Start();
  { auto update = engine_->BeginWeightUpdate({}); }
  const auto slept = engine_->Sleep({.level = 1});
  ASSERT_TRUE(slept.ok()) << slept.status();
  EXPECT_EQ(slept->tags.at("weights").state, TagState::kDiscarded);
  EXPECT_EQ(engine_->Stats().sleep_level, 2);
  EXPECT_EQ(executor_.lifecycle_calls().back(), "sleep 2");
}

TEST_F(EngineWeightsTest, TheEndOfTheEngineEndsAnUpdate) {
  Start();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  engine_->DrainAndStop(absl::ZeroDuration());
  EXPECT_FALSE((*update)->Finish().ok());
  EXPECT_FALSE(engine_->BeginWeightUpdate({}).ok());
}

}  // namespace
}  // namespace somnus
