// Deadlines over replicas: in the queue, at a replica, and on the way between replicas.

#include <atomic>

#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

class ReplicaExpiryTest : public ReplicaSetTest {
 protected:
  ReplicaExpiryTest() {
    options_.monotonic_now = [this] { return absl::Milliseconds(looks_ ? now_ms_ += 50 : now_ms_.load()); };
  }
  ~ReplicaExpiryTest() override {
    for (const auto& executor : executors_) executor->Hold(false);
    set_.reset();  // before the clock
  }
  Ticket SubmitWith(const std::string& id, int32_t prompt_len, MonotonicTime deadline,
                    MonotonicTime first_token_by = absl::InfiniteDuration(), int32_t first = 1) {
    Ticket ticket = MakeTicket(id, prompt_len, 5, first);
    ticket.request.deadline = deadline;
    ticket.request.first_token_by = first_token_by;
    EXPECT_TRUE(set_->Submit(ticket.request).ok());
    return ticket;
  }
  // Time passes, and the queue looks at the clock.
  void Pass(int64_t seconds) {
    now_ms_ += 1000 * seconds;
    const Ticket gone = MakeTicket("gone", 5, 5);
    ASSERT_TRUE(set_->Submit(gone.request).ok());
    set_->Abort("gone");
    ASSERT_TRUE(gone.sink->Wait());
  }
  void ExpectExpired(const Ticket& ticket, ExpiryCause cause) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->error(), ExpiryError(cause));
    EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
  }

  SchedulingObserver observer_;
  std::atomic<int64_t> now_ms_{1'000'000};
  std::atomic<bool> looks_{false};  // each look takes 50 ms
};
INSTANTIATE_TEST_SUITE_P(OffAndOn, ReplicaExpiryTest, ::testing::Bool());

TEST_P(ReplicaExpiryTest, TimeThatPassesInTheQueueCounts) {
  Start();
  for (const auto& executor : executors_) executor->Lose(kLoss);
  Await([&] { return set_->state() == EngineState::kRecovering; });
  const Ticket expires = SubmitWith("expires", 5, absl::Seconds(1010));
  const Ticket refused = SubmitWith("refused", 5, absl::Seconds(1020), absl::Seconds(1010));
  const Ticket patient = SubmitWith("patient", 5, absl::Seconds(1020));
  Pass(10);
  ExpectExpired(expires, ExpiryCause::kDeadlineWaiting);
  ExpectExpired(refused, ExpiryCause::kTtftPassed);
  EXPECT_FALSE(patient.sink->done());
  executors_[1]->FinishRecovery(absl::OkStatus());
  ExpectExact({patient});
}

TEST_P(ReplicaExpiryTest, TimeThatPassesWhileAllReplicasAreBusyCounts) {
  options_.scheduler.max_num_seqs = 1;
  Start();
  for (const auto& executor : executors_) executor->Hold(true);
  // Each replica takes one request beyond the requests under computation.
  const std::vector<Ticket> taken = SubmitMany(4, 20);
  Await([&] {
    const EngineStats stats = set_->Stats();
    return stats.replicas[0].num_requests == 2 && stats.replicas[1].num_requests == 2;
  });
  const Ticket expires = SubmitWith("expires", 5, absl::Seconds(1001));
  const Ticket refused = SubmitWith("refused", 5, absl::Seconds(1002), absl::Seconds(1001));
  const Ticket patient = SubmitWith("patient", 5, absl::Seconds(1002));
  Pass(1);
  ExpectExpired(expires, ExpiryCause::kDeadlineWaiting);
  ExpectExpired(refused, ExpiryCause::kTtftPassed);
  EXPECT_FALSE(patient.sink->done());
  for (const auto& executor : executors_) executor->Hold(false);
  ExpectExact(taken);
  ExpectExact({patient});
}

TEST_P(ReplicaExpiryTest, WhatARequestHasLeftGoesAlongToAnotherReplica) {
  Start(2, &observer_);
  for (const auto& executor : executors_) executor->Hold(true);
  const Ticket expires = SubmitWith("expires", 5, absl::Seconds(1010));
  const Ticket neighbour = Submit("neighbour", 5, 100, 500);
  Await([&] { return observer_.num_scheduled == 2; });
  // Both are lost, and the request waits in the queue with all tokens.
  for (const auto& executor : executors_) executor->Lose(kLoss);
  Await([&] { return set_->state() == EngineState::kRecovering; });
  Pass(10);
  ExpectExpired(expires, ExpiryCause::kDeadlineRunning);
  for (const auto& executor : executors_) executor->Hold(false);
  for (const auto& executor : executors_) executor->FinishRecovery(absl::OkStatus());
  ExpectExact({neighbour});
}

// The time that passes is below that after which a step that has no reply is a loss.
TEST_P(ReplicaExpiryTest, AnExpiredRequestLeavesRoomAtItsReplica) {
  options_.scheduler.max_num_seqs = 1;
  Start(2, &observer_);
  for (const auto& executor : executors_) executor->Hold(true);
  // Prompts that begin alike would go to a single replica, which has a single slot.
  const std::vector<Ticket> runs = {
      SubmitWith("a", 5, absl::Seconds(1001)),
      SubmitWith("b", 5, absl::Seconds(1001), absl::InfiniteDuration(), /*first=*/500)};
  Await([&] { return observer_.num_scheduled == 2; });
  now_ms_ += 1000;
  for (const auto& executor : executors_) executor->Hold(false);
  for (const Ticket& one : runs) ExpectExpired(one, ExpiryCause::kDeadlineRunning);
  const std::vector<Ticket> next = SubmitMany(6, 20);
  ExpectExact(next);
  EXPECT_EQ(set_->Stats().used_blocks, 0);
}

TEST_P(ReplicaExpiryTest, WhatCannotHaveItsFirstTokenInTimeIsRefusedInTheQueue) {
  Start();
  looks_ = true;
  // Each replica measures steps of 16 tokens.
  std::vector<Ticket> measure;
  for (int i = 0; i < 8; ++i) {
    measure.push_back(Submit(std::to_string(i), 70, 1, 90 * i + 1));
    ExpectExact({measure.back()});
  }
  ASSERT_TRUE(set_->Resume().ok());
  looks_ = false;
  const EngineStats stats = set_->Stats();
  ASSERT_GT(stats.replicas[0].num_requests, 0);
  ASSERT_GT(stats.replicas[1].num_requests, 0);
  const MonotonicTime now = absl::Milliseconds(now_ms_.load());
  const Ticket hopeless =
      SubmitWith("hopeless", 160, absl::InfiniteDuration(), now + absl::Milliseconds(200), 400);
  ExpectExpired(hopeless, ExpiryCause::kTtftEstimate);
  ExpectExact({SubmitWith("may be", 160, absl::InfiniteDuration(), now + absl::Hours(1), 600)});
  EXPECT_EQ(set_->Stats().replicas[0].num_requests + set_->Stats().replicas[1].num_requests,
            stats.replicas[0].num_requests + stats.replicas[1].num_requests + 1)
      << "no replica had the hopeless one";
}

}  // namespace
}  // namespace somnus
