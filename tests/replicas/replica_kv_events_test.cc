// KV events of several replicas: a single log, in which each batch names a replica.

#include <map>

#include "coordinator/engine/kv_event_log.h"
#include "tests/block_manager/replayed_cache.h"
#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

class ReplicaKvEventsTest : public ReplicaSetTest {};
INSTANTIATE_TEST_SUITE_P(Overlap, ReplicaKvEventsTest, ::testing::Bool());

TEST_P(ReplicaKvEventsTest, BatchesNameTheirReplica) {
  const int32_t block_size = options_.scheduler.blocks.block_size;
  options_.kv_events = std::make_shared<KvEventLog>(
      KvEventLogOptions{.max_events = 1 << 16, .block_size = block_size, .num_replicas = 2});
  const auto reader = options_.kv_events->Follow(1, [] {});
  Start();
  ExpectExact(SubmitMany(12));
  std::map<int32_t, ReplayedCache> replayed;
  const auto read = [&] {
    while (const auto batch = reader->Next())
      replayed.try_emplace(batch->replica, block_size).first->second.Apply(batch->events);
  };
  read();
  ASSERT_EQ(replayed.size(), 2u) << "both have served";
  for (const auto& [replica, cache] : replayed) EXPECT_FALSE(cache.contents().empty()) << replica;
  executors_[1]->Lose(kLoss);
  AwaitReplica(1, EngineState::kRecovering);
  read();
  EXPECT_TRUE(replayed.at(1).contents().empty());
  EXPECT_FALSE(replayed.at(0).contents().empty()) << "it has lost nothing";
}

}  // namespace
}  // namespace somnus
