#include "worker/model/shards.h"

#include "gtest/gtest.h"

namespace somnus {
namespace {

ModelConfig Config(int32_t heads, int32_t kv_heads, int32_t mlp = 1536, int32_t vocab = 49152) {
  ModelConfig config;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.intermediate_size = mlp;
  config.vocab_size = vocab;
  return config;
}

TEST(ShardRangeTest, CoversEverythingOnceInOrder) {
  for (int64_t total : {1, 2, 3, 7, 63, 64, 130, 512, 1536, 49152, 151936}) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const Range range = ShardRange(total, rank, world_size);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), 0);
        next = range.end;
      }
      EXPECT_EQ(next, total);
      EXPECT_FALSE(ShardRange(total, world_size - 1, world_size).empty());
    }
  }
}

TEST(ShardRangeTest, CutsLargeRangesAtPanels) {
  EXPECT_EQ(ShardRange(49152, 1, 3).begin % 64, 0);
  EXPECT_EQ(ShardRange(1536, 0, 2).end, 768);
  EXPECT_EQ(ShardRange(130, 0, 3).end, 43);
}

TEST(MakeShardsTest, CutsBetweenKvHeadsWhileThereAreEnough) {
  const ModelShards first = MakeShards(Config(9, 3), 0, 2), second = MakeShards(Config(9, 3), 1, 2);
  EXPECT_EQ(first.kv_heads.size(), 1);
  EXPECT_EQ(first.heads.size(), 3);
  EXPECT_EQ(second.kv_heads.begin, 1);
  EXPECT_EQ(second.heads.begin, 3);
  EXPECT_EQ(second.heads.size(), 6);
  EXPECT_EQ(second.kv_head_of_head, (std::vector<int32_t>{0, 0, 0, 1, 1, 1}));
}

TEST(MakeShardsTest, ReplicatesKvHeadsWhenThereAreFewer) {
  std::vector<int32_t> kv_of_all;
  for (int rank = 0; rank < 4; ++rank) {
    const ModelShards shards = MakeShards(Config(9, 3), rank, 4);
    EXPECT_EQ(shards.heads.begin, 9 * rank / 4);
    for (int32_t kv : shards.kv_head_of_head) {
      EXPECT_LT(kv, shards.kv_heads.size());
      kv_of_all.push_back(static_cast<int32_t>(shards.kv_heads.begin) + kv);
    }
  }
  EXPECT_EQ(kv_of_all, (std::vector<int32_t>{0, 0, 0, 1, 1, 1, 2, 2, 2}));
}

std::vector<int64_t> LayersOf(int32_t num_layers, PipelinePlace place) {
  std::vector<int64_t> counts;
  int64_t next = 0;
  for (place.stage = 0; place.stage < place.num_stages; ++place.stage) {
    EXPECT_TRUE(CheckPipeline(place, num_layers).ok());
    const Range layers = StageLayers(place, num_layers);
    EXPECT_EQ(layers.begin, next);
    counts.push_back(layers.size());
    next = layers.end;
  }
  EXPECT_EQ(next, num_layers);
  return counts;
}

TEST(StageLayersTest, AreEqualAndTheLastStageHasNoneThatIsLeftOver) {
  EXPECT_EQ(LayersOf(30, {.num_stages = 1}), (std::vector<int64_t>{30}));
  EXPECT_EQ(LayersOf(30, {.num_stages = 3}), (std::vector<int64_t>{10, 10, 10}));
  EXPECT_EQ(LayersOf(30, {.num_stages = 4}), (std::vector<int64_t>{7, 8, 8, 7}));
  EXPECT_EQ(LayersOf(7, {.num_stages = 4}), (std::vector<int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(LayersOf(7, {.num_stages = 2, .stage_layers = {5, 2}}), (std::vector<int64_t>{5, 2}));
}

TEST(StageLayersTest, SplitsThatLeaveAStageOrALayerOutAreRefused) {
  EXPECT_FALSE(CheckPipeline({.num_stages = 3}, 2).ok());
  EXPECT_FALSE(CheckPipeline({.stage = 2, .num_stages = 2}, 4).ok());
  for (const std::vector<int32_t>& layers : {std::vector<int32_t>{4}, {1, 2}, {4, 0}, {5, -1}})
    EXPECT_FALSE(CheckPipeline({.num_stages = 2, .stage_layers = layers}, 4).ok());
}

TEST(MakeShardsTest, StagesDivideTheLayersAndNothingElse) {
  ModelConfig config = Config(9, 3);
  config.num_layers = 5;
  const ModelShards whole = MakeShards(config, 1, 2);
  const ModelShards second = MakeShards(config, 1, 2, {.stage = 1, .num_stages = 2});
  EXPECT_EQ(whole.layers.size(), 5);
  EXPECT_TRUE(whole.first_stage && whole.last_stage);
  EXPECT_EQ(second.layers.begin, 3);
  EXPECT_FALSE(second.first_stage);
  EXPECT_TRUE(second.last_stage);
  EXPECT_EQ(second.heads.begin, whole.heads.begin);
  EXPECT_EQ(second.vocab.begin, whole.vocab.begin);
}

TEST(MakeShardsTest, LeavesRanksWithoutHeadsEmpty) {
  const ModelShards first = MakeShards(Config(2, 1), 0, 4), last = MakeShards(Config(2, 1), 3, 4);
  EXPECT_TRUE(first.heads.empty());
  EXPECT_TRUE(first.kv_heads.empty());
  EXPECT_FALSE(last.heads.empty());
  EXPECT_TRUE(last.last_rank());
}

}  // namespace
}  // namespace somnus
