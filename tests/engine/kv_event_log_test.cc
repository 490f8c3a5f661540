// The log of KV events: where readers begin, the events that readers get, and the end of slow readers.

#include "coordinator/engine/kv_event_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/block_manager/replayed_cache.h"

namespace somnus {
namespace {

using Kind = BlockEvent::Kind;
using Batch = std::shared_ptr<const KvEventBatch>;

constexpr int32_t kBlockSize = 2;

std::vector<BlockEvent> Stored(uint64_t id, uint64_t parent = 0, const std::string& salt = "") {
  const auto token = static_cast<int32_t>(id);
  return {{.kind = Kind::kStored,
           .content_ids = {id},
           .parent_content_id = parent,
           .tokens = {token, token},
           .salt = salt}};
}
std::vector<BlockEvent> Removed(uint64_t id) { return {{.kind = Kind::kRemoved, .content_ids = {id}}}; }

class KvEventLogTest : public ::testing::Test {
 protected:
  void Start(int64_t max_events, int32_t num_replicas = 1) {
    log_ = std::make_shared<KvEventLog>(KvEventLogOptions{.max_events = max_events,
                                                          .block_size = kBlockSize,
                                                          .num_replicas = num_replicas,
                                                          .first_sequence = 1000});
  }
  void Append(std::vector<BlockEvent> events, int32_t replica = 0) {
    log_->Append(replica, std::move(events), absl::FromUnixSeconds(7));
  }
  std::unique_ptr<KvEventReader> Follow(std::optional<int64_t> from = std::nullopt) {
    return log_->Follow(from, [this] { ++num_wakes_; });
  }
  // All that there is to read.
  static std::vector<Batch> Read(KvEventReader* reader) {
    std::vector<Batch> batches;
    while (Batch batch = reader->Next()) batches.push_back(std::move(batch));
    return batches;
  }
  static std::vector<int64_t> Sequences(const std::vector<Batch>& batches) {
    std::vector<int64_t> sequences;
    for (const Batch& batch : batches) sequences.push_back(batch->sequence);
    return sequences;
  }

  std::shared_ptr<KvEventLog> log_;
  std::atomic<int> num_wakes_{0};
};

TEST_F(KvEventLogTest, AReaderBeginsWithASnapshotAndGoesOnWithBatches) {
  Start(100);
  Append(Stored(1, 0, "s"));
  Append(Stored(2, 1));
  Append(Stored(3));
  Append(Removed(3));
  const auto reader = Follow();
  std::vector<Batch> batches = Read(reader.get());
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_TRUE(batches[0]->is_snapshot);
  EXPECT_EQ(batches[0]->num_parts_left, 0);
  EXPECT_EQ(batches[0]->sequence, 1003) << "the last one that it includes";
  EXPECT_EQ(batches[0]->events,
            (std::vector<BlockEvent>{
                {}, {.kind = Kind::kStored, .content_ids = {1, 2}, .tokens = {1, 1, 2, 2}, .salt = "s"}}));
  EXPECT_EQ(num_wakes_, 0);
  Append(Removed(2));
  Append({});
  Append(Stored(4));
  EXPECT_EQ(num_wakes_, 1) << "once, until it has read";
  batches = Read(reader.get());
  EXPECT_EQ(Sequences(batches), (std::vector<int64_t>{1004, 1005})) << "nothing has no number";
  EXPECT_FALSE(batches[0]->is_snapshot);
  EXPECT_EQ(batches[0]->events, Removed(2));
  EXPECT_EQ(batches[0]->time, absl::FromUnixSeconds(7));
}

TEST_F(KvEventLogTest, AReaderThatComesBackGoesOnWhereItWas) {
  Start(100);
  for (uint64_t id = 1; id <= 5; ++id) Append(Stored(id));
  const auto reader = Follow(1003);
  EXPECT_EQ(Sequences(Read(reader.get())), (std::vector<int64_t>{1003, 1004}));
  const auto newest = Follow(1005);
  EXPECT_TRUE(Read(newest.get()).empty()) << "it has seen everything";
  Append(Stored(6));
  EXPECT_EQ(Sequences(Read(newest.get())), std::vector<int64_t>{1005});
}

TEST_F(KvEventLogTest, NumbersThatTheLogDoesNotHaveBeginWithASnapshot) {
  Start(2);
  for (uint64_t id = 1; id <= 5; ++id) Append(Stored(id));
  for (const int64_t from : {int64_t{0}, int64_t{1002}, int64_t{1006}, int64_t{1} << 60}) {
    const std::vector<Batch> batches = Read(Follow(from).get());
    ASSERT_EQ(batches.size(), 1u) << from;
    EXPECT_TRUE(batches[0]->is_snapshot) << from;
    EXPECT_EQ(batches[0]->sequence, 1004) << from;
    EXPECT_EQ(batches[0]->events.size(), 1u + 5u) << from;
  }
  EXPECT_EQ(Sequences(Read(Follow(1003).get())), (std::vector<int64_t>{1003, 1004}));
}

TEST_F(KvEventLogTest, ASlowReaderGetsASnapshotInPlaceOfWhatItHasMissed) {
  Start(3);
  Append(Stored(1));
  const auto reader = Follow();
  Read(reader.get());
  Append(Stored(2));
  EXPECT_EQ(Sequences(Read(reader.get())), std::vector<int64_t>{1001});
  for (uint64_t id = 3; id <= 6; ++id) Append(Stored(id));
  Append(Removed(1));
  const std::vector<Batch> batches = Read(reader.get());
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_TRUE(batches[0]->is_snapshot);
  EXPECT_EQ(batches[0]->sequence, 1006);
  EXPECT_EQ(batches[0]->events.front().kind, Kind::kCleared);
  Append(Stored(7));
  EXPECT_EQ(Sequences(Read(reader.get())), std::vector<int64_t>{1007});
}

TEST_F(KvEventLogTest, ABatchAboveTheBoundIsKeptUntilTheNextOne) {
  Start(2);
  BlockEvent many = {.kind = Kind::kStored};
  for (uint64_t id = 1; id <= 9; ++id) many.content_ids.push_back(id);
  many.tokens.resize(9 * kBlockSize);
  Append({many});
  EXPECT_FALSE(Read(Follow(1000).get())[0]->is_snapshot);
  Append(Removed(9));
  EXPECT_TRUE(Read(Follow(1000).get())[0]->is_snapshot);
  EXPECT_FALSE(Read(Follow(1001).get())[0]->is_snapshot);
}

TEST_F(KvEventLogTest, ALargeSnapshotComesInParts) {
  Start(10);
  constexpr uint64_t kBlocks = 70'000;  // of 2 tokens; a part has 64 Ki
  for (uint64_t id = 1; id <= kBlocks; ++id) Append(Stored(id, id - 1));
  const auto reader = Follow();
  ReplayedCache replayed(kBlockSize);
  const Batch first = reader->Next();
  EXPECT_EQ(first->num_parts_left, 2);
  replayed.Apply(first->events);
  Append(Removed(kBlocks));  // belongs behind the snapshot
  const std::vector<Batch> others = Read(reader.get());
  ASSERT_EQ(others.size(), 3u);
  EXPECT_EQ(others[0]->num_parts_left, 1);
  EXPECT_EQ(others[1]->num_parts_left, 0);
  EXPECT_EQ(others[1]->sequence, first->sequence);
  EXPECT_FALSE(others[2]->is_snapshot);
  for (const Batch& batch : others) replayed.Apply(batch->events);
  EXPECT_EQ(replayed.contents().size(), kBlocks - 1);
}

TEST_F(KvEventLogTest, ASnapshotHasEveryReplica) {
  Start(100, /*num_replicas=*/3);
  Append(Stored(1), 2);
  Append(Stored(1), 0);
  Append({BlockEvent{}}, 0);
  const std::vector<Batch> batches = Read(Follow().get());
  ASSERT_EQ(batches.size(), 3u);
  for (int32_t replica = 0; replica < 3; ++replica) {
    const KvEventBatch& batch = *batches[static_cast<size_t>(replica)];
    EXPECT_EQ(batch.replica, replica);
    EXPECT_EQ(batch.num_parts_left, 2 - replica);
    EXPECT_EQ(batch.events.size(), replica == 2 ? 2u : 1u) << "ids are each replica's own";
  }
}

TEST_F(KvEventLogTest, ASnapshotHasBothMedia) {
  Start(100);
  const auto on_host = [](std::vector<BlockEvent> events) {
    events[0].medium = CacheMedium::kHost;
    return events;
  };
  Append(Stored(1));
  Append(on_host(Stored(1)));
  Append(Stored(2, 1));
  Append(on_host(Stored(3, 1)));
  Append(Removed(1));
  Append(on_host(Stored(4)));
  Append(on_host(Removed(4)));
  const std::vector<Batch> batches = Read(Follow().get());
  ASSERT_EQ(batches.size(), 1u);
  const BlockEvent device = Stored(2, 1)[0];
  const BlockEvent host = {
      .kind = Kind::kStored, .medium = CacheMedium::kHost, .content_ids = {1, 3}, .tokens = {1, 1, 3, 3}};
  EXPECT_EQ(batches[0]->events, (std::vector<BlockEvent>{{}, device, host}));
  Append({BlockEvent{}});
  EXPECT_EQ(Read(Follow().get())[0]->events, std::vector<BlockEvent>{BlockEvent{}})
      << "nothing is left in either";
}

TEST_F(KvEventLogTest, ReadersEndWithTheLogOnceTheyHaveReadIt) {
  Start(100);
  const auto reader = Follow(1000), other = Follow();
  EXPECT_TRUE(Read(reader.get()).empty());
  EXPECT_FALSE(reader->ended());
  Append(Stored(1));
  log_->End();
  EXPECT_EQ(num_wakes_, 1);
  EXPECT_EQ(Read(reader.get()).size(), 1u);
  EXPECT_TRUE(reader->ended());
  EXPECT_EQ(Read(other.get()).size(), 1u);
  EXPECT_TRUE(other->ended());
}

TEST_F(KvEventLogTest, ReadersAtEverySpeedKnowWhatIsCached) {
  Start(20, 2);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  std::vector<size_t> sizes(4, 0);
  for (size_t i = 0; i < sizes.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto reader = Follow();
      std::vector<ReplayedCache> replayed(2, ReplayedCache(kBlockSize, /*may_repeat=*/true));
      while (!reader->ended()) {
        if (const Batch batch = reader->Next()) {
          replayed[static_cast<size_t>(batch->replica)].Apply(batch->events);
          if (i > 0) std::this_thread::sleep_for(std::chrono::microseconds(20 << i));
        } else {
          std::this_thread::yield();
        }
      }
      sizes[i] = 1000 * replayed[0].contents().size() + replayed[1].contents().size();
    });
  }
  for (uint64_t id = 1; id <= 2000; ++id) {
    Append(Stored(id), static_cast<int32_t>(id % 2));
    if (id > 40) Append(Removed(id - 40), static_cast<int32_t>(id % 2));
  }
  log_->End();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sizes, std::vector<size_t>(4, 20'020));
}

}  // namespace
}  // namespace somnus
