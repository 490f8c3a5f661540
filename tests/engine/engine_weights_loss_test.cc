// Losses of the group while the weights are replaced, or afterwards.

#include <thread>

#include "tests/engine/engine_weights_fixture.h"

namespace somnus {
namespace {

TEST_F(EngineWeightsTest, AReloadThatALossInterruptsBeginsAgain) {
  Start();
  executor_.HoldLifecycle(true);
  std::thread reloading([&] { EXPECT_EQ(engine_->ReloadWeights({.path = "new"})->version, 2); });
  while (engine_->state() != EngineState::kWaking) std::this_thread::yield();
  executor_.Lose(kLoss);
  while (executor_.recoveries().empty()) std::this_thread::yield();
  executor_.HoldLifecycle(false);
  reloading.join();
  EXPECT_EQ(executor_.recoveries(), Calls{"stale"}) << "a new worker need not read the old checkpoint";
  EXPECT_EQ(executor_.lifecycle_calls(), (Calls{"reload new as 2", "reload new as 2"}));
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, AReloadThatIsRefusedAfterALossLeavesTheWeightsStale) {
  Start();
  executor_.HoldLifecycle(true);
  std::thread reloading([&] { EXPECT_FALSE(engine_->ReloadWeights({.path = "new"}).ok()); });
  while (engine_->state() != EngineState::kWaking) std::this_thread::yield();
  executor_.Lose(kLoss);
  while (executor_.lifecycle_calls().size() < 2) std::this_thread::yield();
  executor_.SetNextWeightsOutcome({.status = absl::InvalidArgumentError("no such file"), .untouched = true});
  executor_.HoldLifecycle(false);
  reloading.join();
  ExpectStale();
  EXPECT_EQ(engine_->ReloadWeights({}).value().version, 2);
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, ALossEndsAnUpdate) {
  Start();
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  executor_.Lose(kLoss);
  EXPECT_FALSE((*update)->Send(Chunk("a")).ok());
  const absl::Status status = (*update)->Finish().status();
  EXPECT_EQ(status, kLoss);
  while (engine_->state() == EngineState::kRecovering) std::this_thread::yield();
  ExpectStale();
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, AnUpdateThatALossHasEndedSendsNothingIntoTheNextOne) {
  Start();
  auto lost = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(lost.ok()) << lost.status();
  executor_.Lose(kLoss);
  auto next = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*lost)->Send(Chunk("of the lost one")), kLoss);
  ASSERT_TRUE((*next)->Send(Chunk("a")).ok());
  ASSERT_TRUE((*next)->Finish().ok());
  EXPECT_EQ(executor_.lifecycle_calls(),
            (Calls{"begin update", "begin update", "chunk a", "finish update as 2"}));
  ExpectServes(2);
}

TEST_F(EngineWeightsTest, ARecoveryMayLeadToStaleWeights) {
  Start();
  Residency stale;
  stale.SetWeightsStale(true);
  executor_.SetRecovered({stale, options_.weights});
  executor_.Lose(kLoss);
  // The count is published before the state.
  while (engine_->Stats().num_recoveries == 0 || engine_->state() == EngineState::kRecovering)
    std::this_thread::yield();
  ExpectStale();
}

TEST_F(EngineWeightsTest, RepliesOfAnotherVersionAreALossOfTheGroup) {
  Start();
  executor_.SetWeightsVersion(5);
  Ticket ticket = MakeTicket("a", 5, 5);
  ASSERT_TRUE(engine_->Submit(ticket.request).ok());
  while (executor_.recoveries().empty()) std::this_thread::yield();
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
}

}  // namespace
}  // namespace somnus
