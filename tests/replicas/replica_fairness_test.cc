// Users' accounts over replicas: the queue hands out by the accounts, and nothing is charged twice.

#include <algorithm>

#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

class ReplicaFairnessTest : public ReplicaSetTest {
 protected:
  ReplicaFairnessTest() { options_.scheduler.accounts = UserAccounts::Create(100); }
  Ticket SubmitOf(const std::string& user, const std::string& id, int32_t max_tokens, int32_t first) {
    Ticket ticket = MakeTicket(id, 8, max_tokens, first);
    ticket.request.user = user;
    EXPECT_TRUE(set_->Submit(ticket.request).ok());
    return ticket;
  }
  int64_t ServiceOf(const std::string& user) { return options_.scheduler.accounts->Enter(user)->service(); }
};
INSTANTIATE_TEST_SUITE_P(OffAndOn, ReplicaFairnessTest, ::testing::Bool());

TEST_P(ReplicaFairnessTest, TheQueueHandsOutByWhatUsersHaveHad) {
  options_.scheduler.max_num_seqs = 1;
  RecordingObserver observer;
  Start(2, &observer);
  for (const auto& executor : executors_) executor->Lose(kLoss);
  Await([&] { return set_->state() == EngineState::kRecovering; });
  std::vector<Ticket> tickets;
  for (int i = 0; i < 6; ++i) tickets.push_back(SubmitOf("flood", "f" + std::to_string(i), 8, 50 * i + 1));
  tickets.push_back(SubmitOf("light", "light", 8, 500));
  executors_[0]->FinishRecovery(absl::OkStatus());
  ExpectExact(tickets);
  const std::vector<std::string> order = observer.finished();
  // The flood's first came before, and costs as much as the light user has had by then.
  EXPECT_EQ(std::find(order.begin(), order.end(), "light") - order.begin(), 1);
}

TEST_P(ReplicaFairnessTest, ARequestThatMovesIsChargedOnce) {
  const auto account = options_.scheduler.accounts->Enter("u");
  Start();
  for (const auto& executor : executors_) executor->SetStepTime(absl::Milliseconds(1));
  const Ticket moves = SubmitOf("u", "moves", 60, 1);
  ASSERT_TRUE(moves.sink->WaitForTokens(5));
  for (const auto& executor : executors_) executor->Lose(kLoss);
  Await([&] { return set_->state() == EngineState::kRecovering; });
  for (const auto& executor : executors_) executor->FinishRecovery(absl::OkStatus());
  ExpectExact({moves});
  EXPECT_EQ(account->service(), 8 + UserAccounts::kOutputWeight * 60);
}

TEST_P(ReplicaFairnessTest, ReplicasShareTheAccounts) {
  const auto account = options_.scheduler.accounts->Enter("u");
  Start();
  std::vector<Ticket> tickets;
  for (int i = 0; i < 8; ++i) tickets.push_back(SubmitOf("u", std::to_string(i), 10, 50 * i + 1));
  ExpectExact(tickets);
  EXPECT_EQ(account->service(), 8 * (8 + UserAccounts::kOutputWeight * 10));
  EXPECT_EQ(ServiceOf("another"), account->service()) << "who comes now begins beside it";
}

}  // namespace
}  // namespace somnus
