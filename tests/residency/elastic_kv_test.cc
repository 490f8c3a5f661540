// The size of an elastic KV cache, by values alone.

#include "coordinator/several_models/elastic_kv.h"

#include <gtest/gtest.h>

#include "base/memory_tags.h"

namespace somnus {
namespace {

constexpr int64_t kBlockBytes = 1000;
constexpr int64_t kWeightsBytes = 5000;

SharingModel Model() {
  SharingModel model{.elastic_kv = true, .min_kv_bytes = 10 * kBlockBytes, .kv_block_bytes = kBlockBytes};
  return model;
}

// A cache of 99 blocks and the null block, of which `mapped` have memory.
EngineStats Stats(int32_t mapped) {
  EngineStats stats;
  stats.block_size = 16;
  stats.max_blocks = 99;
  stats.longest_blocks = 4;
  stats.mapped_blocks = mapped;
  stats.resident_bytes = {{kKvCacheTag, (mapped + 1) * kBlockBytes}};
  return stats;
}

struct Cache {
  explicit Cache(int32_t mapped) : bytes({{kWeightsTag, kWeightsBytes}}) {
    const EngineStats stats = Stats(mapped);
    bytes[kKvCacheTag] = stats.resident_bytes.at(kKvCacheTag);
    kv.Init(Model(), stats, &bytes);
    kv.Note(stats, absl::ZeroDuration(), absl::Seconds(5));
  }
  KvShareView View() const { return kv.View(KvShareView::State::kAwake, /*resident_bytes=*/0); }

  TagBytes bytes;
  ElasticKv kv;
};

TEST(ElasticKvTest, ACacheWithoutMemoryIsNotElastic) {
  TagBytes bytes = {{kWeightsTag, kWeightsBytes}, {kKvCacheTag, 0}};
  ElasticKv kv;
  kv.Init(Model(), Stats(0), &bytes);
  EXPECT_FALSE(kv.is_elastic());
}

TEST(ElasticKvTest, AnAdoptedCacheThatWasShrunkCountsWithItsWholeSize) {
  const Cache cache(/*mapped=*/20);
  EXPECT_EQ(cache.bytes.at(kKvCacheTag), 100 * kBlockBytes);
  EXPECT_EQ(cache.kv.DeviceBytesWith(99), kWeightsBytes + cache.bytes.at(kKvCacheTag));
  // While the model is awake the bytes are known.
  EXPECT_EQ(cache.kv.DeviceBytes(/*is_awake=*/true), kWeightsBytes + 21 * kBlockBytes);
}

TEST(ElasticKvTest, NoSizeTakesMoreThanTheWholeCache) {
  const Cache cache(/*mapped=*/99);
  EXPECT_EQ(cache.kv.DeviceBytesWith(1000), kWeightsBytes + 100 * kBlockBytes);
  EXPECT_LT(cache.kv.LeastDeviceBytes(), cache.kv.DeviceBytesWith(50));
}

TEST(ElasticKvTest, TheMinimumHoldsALongestSequence) {
  SharingModel model = Model();
  model.min_kv_bytes = 0;
  TagBytes bytes = Stats(99).resident_bytes;
  ElasticKv kv;
  kv.Init(model, Stats(99), &bytes);
  EXPECT_EQ(kv.View(KvShareView::State::kAwake, 0).min_blocks, 4);
}

TEST(ElasticKvTest, TheHighestNeedCountsForAWhile) {
  Cache cache(/*mapped=*/99);
  EngineStats stats = Stats(99);
  stats.used_blocks = 40;
  stats.num_waiting = 1;
  stats.waiting_tokens = 17;  // two blocks, and a block for the request itself
  cache.kv.Note(stats, absl::Seconds(10), absl::Seconds(5));
  EXPECT_EQ(cache.View().needed_blocks, 43);
  cache.kv.Note(Stats(99), absl::Seconds(14), absl::Seconds(5));
  EXPECT_EQ(cache.View().needed_blocks, 43);
  cache.kv.Note(Stats(99), absl::Seconds(15), absl::Seconds(5));
  EXPECT_EQ(cache.View().needed_blocks, 0);
}

TEST(ElasticKvTest, AResizeCountsWithTheLargerSizeUntilItHasEnded) {
  Cache cache(/*mapped=*/20);
  const int64_t growth = cache.kv.DeviceBytesWith(60) - cache.kv.DeviceBytes(/*is_awake=*/true);
  cache.kv.BeginResize(60);
  EXPECT_TRUE(cache.kv.resizes());
  EXPECT_EQ(cache.kv.DeviceBytes(/*is_awake=*/true), cache.kv.DeviceBytesWith(60));
  EXPECT_EQ(cache.kv.PendingBytes(), growth);
  cache.kv.EndResize(60, 60, absl::Seconds(3), /*min_stay=*/absl::Seconds(1));
  EXPECT_EQ(cache.kv.PendingBytes(), 0);
  EXPECT_FALSE(cache.kv.resizes());
  EXPECT_EQ(cache.View().resized_at, absl::Seconds(3));
}

TEST(ElasticKvTest, ACacheThatGaveUpLessIsAskedAgainSoonerThanACacheThatGrew) {
  Cache cache(/*mapped=*/60);
  cache.kv.BeginResize(20);
  cache.kv.EndResize(20, /*mapped=*/30, absl::Seconds(3), /*min_stay=*/absl::Seconds(1));
  EXPECT_GT(cache.View().resized_at, absl::Seconds(2));  // stays until resized_at + min_stay
  EXPECT_LT(cache.View().resized_at, absl::Seconds(3));
}

TEST(ElasticKvTest, AFailedResizeIsNotTriedAgainAtOnce) {
  Cache cache(/*mapped=*/60);
  cache.kv.BeginResize(20);
  cache.kv.EndResize(20, absl::ResourceExhaustedError("no memory"), absl::Seconds(3), absl::Seconds(1));
  EXPECT_FALSE(cache.kv.resizes());
  EXPECT_EQ(cache.View().resized_at, absl::Seconds(3));
}

}  // namespace
}  // namespace somnus
