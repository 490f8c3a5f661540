// The memory that replicas lack together, and how long requests wait for the replicas.

#include <atomic>

#include "proto/missing_memory.h"
#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

using ReplicaMemoryTest = ReplicaSetTest;
INSTANTIATE_TEST_SUITE_P(Replicas, ReplicaMemoryTest, ::testing::Bool());

absl::Status Lacking(int32_t rank, int64_t bytes) {
  v1::MissingMemory missing;
  v1::MissingMemory::Shortage* shortage = missing.add_shortages();
  shortage->set_rank(rank);
  shortage->set_tag("kv_cache");
  shortage->set_missing_bytes(bytes);
  return WithMissing(absl::ResourceExhaustedError("no memory"), missing);
}

TEST_P(ReplicaMemoryTest, AWakeUpSaysWhatEveryReplicaLacksAndWorksLater) {
  Start(3);
  ASSERT_TRUE(set_->Sleep({.level = 2}).ok());
  executors_[0]->FailNextLifecycleCall(Lacking(1, 10));
  executors_[2]->FailNextLifecycleCall(Lacking(0, 20));
  const absl::Status status = set_->WakeUp({}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), "replica 0: no memory; replica 2: no memory");
  const v1::MissingMemory missing = MissingOf(status);
  ASSERT_EQ(missing.shortages_size(), 2);
  EXPECT_EQ(missing.shortages(0).replica(), 0);
  EXPECT_EQ(missing.shortages(0).rank(), 1);
  EXPECT_EQ(missing.shortages(0).missing_bytes(), 10);
  EXPECT_EQ(missing.shortages(1).replica(), 2);
  EXPECT_EQ(missing.shortages(1).rank(), 0);
  EXPECT_EQ(missing.shortages(1).missing_bytes(), 20);
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact({Submit("a", 5, 5)});
}

TEST_P(ReplicaMemoryTest, ReplicasOfAHostThatDoNotFitTogetherMapNothing) {
  Start(2);
  ASSERT_TRUE(set_->Sleep({.level = 2}).ok());
  for (const auto& executor : executors_)
    executor->SetNeeds({{"rank 0", "this host", {{"kv_cache", 60}}, /*available_bytes=*/100}});
  const std::vector<std::string> before = executors_[0]->lifecycle_calls();
  const absl::Status status = set_->WakeUp({}).status();
  EXPECT_EQ(status.message(),
            "replica 0 rank 0 needs 60 bytes for kv_cache; replica 1 rank 0 needs 60 bytes for kv_cache: 100 "
            "available, 20 missing");
  const v1::MissingMemory missing = MissingOf(status);
  ASSERT_EQ(missing.shortages_size(), 2);
  EXPECT_EQ(missing.shortages(1).replica(), 1);
  EXPECT_EQ(missing.shortages(1).rank(), 0);
  EXPECT_EQ(missing.shortages(1).missing_bytes(), 10);
  EXPECT_EQ(executors_[0]->lifecycle_calls(), before);
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  executors_[1]->SetNeeds({{"rank 0", "another host", {{"kv_cache", 60}}, /*available_bytes=*/100}});
  ASSERT_TRUE(set_->WakeUp({}).ok());
  ExpectExact({Submit("a", 5, 5)});
}

TEST_P(ReplicaMemoryTest, ARequestThatNoReplicaHasYetWaitsForThemToo) {
  std::atomic<int64_t> now{1000};
  options_.now = [&] { return absl::FromUnixSeconds(now); };
  options_.monotonic_now = [&] { return absl::Seconds(now.load()); };
  Start();
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  now = 1003;
  Ticket ticket = MakeTicket("a", 5, 5);
  ticket.request.arrival = absl::FromUnixSeconds(now);
  ASSERT_TRUE(set_->Submit(ticket.request).ok());
  now = 1010;
  EXPECT_EQ(set_->Stats().oldest_wait, absl::Seconds(7));
  ASSERT_TRUE(set_->WakeUp({}).ok());
  EXPECT_EQ(set_->Stats().oldest_wait, absl::ZeroDuration());
  ExpectExact({ticket});
  set_.reset();  // before the clock
}

}  // namespace
}  // namespace somnus
