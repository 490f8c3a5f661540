// Losses of the group while adapters are held or read, and adapters that new workers cannot have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/engine/group_holdings.h"
#include "tests/engine/engine_adapters_fixture.h"

namespace somnus {
namespace {

using testing::HasSubstr;

TEST_F(EngineAdaptersTest, ARecoveryBringsAdaptersBack) {
  BeginWith({"poet"}, 2);
  executor_.Lose(absl::UnavailableError("rank 1 is gone"));
  ExpectAnswer(Ask("", "after"));
  const std::vector<HeldAdapter> held = executor_.recovered().adapters;
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].path, "/poet");
  EXPECT_EQ(held[0].id, (*registry_->Acquire("poet"))->id);
  EXPECT_EQ(held[0].fingerprint, "/poet 0") << "a new worker must not read other files";
}

TEST_F(EngineAdaptersTest, ALossWhileTheWorkersReadAnAdapterBeginsTheReadAgain) {
  Begin(1);
  std::future<absl::Status> loaded = StartRead("poet");
  executor_.Lose(absl::UnavailableError("rank 0 is gone"));
  while (executor_.adapter_reads().size() < 2) absl::SleepFor(absl::Milliseconds(1));
  executor_.HoldAdapterReads(false);
  EXPECT_EQ(loaded.get(), absl::OkStatus());
  ExpectAnswer(Ask("poet"));
}

TEST_F(EngineAdaptersTest, ALossWhileAnAdapterIsReadAgainCostsNoRequest) {
  BeginWithForgottenPoet();
  const Ticket ticket = Ask("poet");
  AwaitReadOfPoet();
  executor_.Lose(absl::UnavailableError("rank 0 is gone"));
  executor_.HoldLifecycle(false);
  ExpectAnswer(ticket);
}

TEST_F(EngineAdaptersTest, AnAdapterThatANewWorkerCannotReadHoldsUpNoOther) {
  BeginWith({"poet", "lawyer"}, 3);
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
  BeginWith({"poet", "lawyer"}, 3);
  Ticket late = MakeTicket("late", 5, 3);  // on the way to the loop meanwhile
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

}  // namespace
}  // namespace somnus
