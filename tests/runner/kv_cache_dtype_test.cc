// A KV cache of another type than the model's, through the whole runner on the CPU.
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/scaled_checkpoint.h"
#include "tests/runner/mini_engine.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kModel[] = "tests/data/tiny/llama-uneven";
constexpr int32_t kBlocks = 64;

ModelRunnerOptions Options(std::optional<DataType> cache, DataType dtype = DataType::kF32) {
  ModelRunnerOptions options;
  options.dtype = dtype;
  options.kv_cache_dtype = cache;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 128;
  return options;
}

std::unique_ptr<RankGroup> Load(const ModelRunnerOptions& options, int world_size = 1,
                                const std::string& model = kModel) {
  auto group = RankGroup::Load(model, world_size, options, kBlocks);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

MiniResult RunPrompt(RankGroup& group, int32_t max_tokens = 8) {
  MiniRequest request;
  for (int32_t i = 0; i < 60; ++i) request.prompt.push_back((i * 37 + 11) % 500);
  request.max_tokens = max_tokens;
  request.sampling.set_num_prompt_logprobs(0);
  MiniOptions options{.max_running = 4, .max_step_tokens = 64, .num_blocks = kBlocks};
  auto result = RunAll(group, {request}, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? (*result)[0] : MiniResult();
}

// The mean difference of a prompt token's log-probability.
double Distance(const MiniResult& a, const MiniResult& b) {
  double sum = 0;
  EXPECT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size());
  for (size_t i = 0; i < std::min(a.prompt_logprobs.size(), b.prompt_logprobs.size()); ++i) {
    sum += std::fabs(double{a.prompt_logprobs[i].logprobs(0)} - b.prompt_logprobs[i].logprobs(0));
  }
  return sum / static_cast<double>(a.prompt_logprobs.size());
}

// Rounding is the only error of a narrower cache, so the distance from the exact result grows with the step
// of the type: by 8 from f16 to bf16, by 16 from there to f8e4m3, here within a factor of two and a half.
// int8 rounds to multiples of a 127th of a head's largest value: finer than f8e4m3, which has 8 steps from
// one power of two to the next, and coarser than bf16, which has 128.
TEST(KvCacheDTypeTest, EveryTypeIsAsNearAsItsBits) {
  for (const char* model : {"tests/data/tiny/llama-uneven", "tests/data/tiny/qwen3", "tests/data/tiny/opt"}) {
    SCOPED_TRACE(model);
    const auto exact = Load(Options({}), 1, model);
    ASSERT_TRUE(exact);
    const MiniResult want = RunPrompt(*exact);
    std::vector<double> distances;
    for (const DataType cache : {DataType::kF16, DataType::kBF16, DataType::kF8E4M3, DataType::kI8}) {
      const auto group = Load(Options(cache), 1, model);
      ASSERT_TRUE(group);
      distances.push_back(Distance(RunPrompt(*group), want));
    }
    EXPECT_GT(distances[0], 0);
    EXPECT_THAT(distances[1] / distances[0], testing::AllOf(testing::Gt(8 / 2.5), testing::Lt(8 * 2.5)));
    EXPECT_THAT(distances[2] / distances[1], testing::AllOf(testing::Gt(16 / 2.5), testing::Lt(16 * 2.5)));
    EXPECT_LT(distances[2], 0.3);
    EXPECT_GT(distances[3], distances[1]);
    EXPECT_LT(distances[3], distances[2] / 2);
  }
}

TEST(KvCacheDTypeTest, AutoIsTheModelsType) {
  for (const DataType dtype : {DataType::kF32, DataType::kBF16}) {
    const auto implied = Load(Options({}, dtype)), named = Load(Options(dtype, dtype));
    ASSERT_TRUE(implied && named);
    EXPECT_EQ(implied->runner(0).kv_block_bytes(), named->runner(0).kv_block_bytes());
    EXPECT_EQ(Distance(RunPrompt(*implied), RunPrompt(*named)), 0);
  }
}

TEST(KvCacheDTypeTest, Float8TakesHalfOfTheBytesOnEveryRank) {
  for (const int world_size : {1, 2, 3}) {
    const auto half = Load(Options(DataType::kF8E4M3, DataType::kBF16), world_size);
    const auto whole = Load(Options({}, DataType::kBF16), world_size);
    ASSERT_TRUE(half && whole);
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(2 * half->runner(rank).kv_block_bytes(), whole->runner(rank).kv_block_bytes()) << rank;
    }
  }
}

// A block's part of a head of 8 dims: 16 tokens' K, V padded to 16 dims, and two scales of 4 bytes for each.
TEST(KvCacheDTypeTest, Int8ScalesArePartOfABlockOnEveryRank) {
  for (const int world_size : {1, 2, 3}) {
    const auto scaled = Load(Options(DataType::kI8, DataType::kBF16), world_size);
    const auto plain = Load(Options(DataType::kF8E4M3, DataType::kBF16), world_size);
    ASSERT_TRUE(scaled && plain);
    for (int rank = 0; rank < world_size; ++rank) {
      const int64_t bytes = plain->runner(rank).kv_block_bytes(), heads = bytes / (16 * (8 + 16));
      EXPECT_EQ(scaled->runner(rank).kv_block_bytes(), bytes + heads * 16 * 2 * 4) << rank;
    }
  }
}

// A model on a single rank, of a checkpoint with scales.
struct ScaledModel {
  explicit ScaledModel(const Checkpoint& checkpoint, std::optional<DataType> cache = DataType::kF8E4M3) {
    auto made = CpuRanks()(0);
    EXPECT_TRUE(made.ok()) << made.status();
    rank = *std::move(made);
    allocator = SleepableAllocator::Create(rank.driver.get());
    communicator = MakeSingleCommunicator();
    auto loaded = ModelRunner::Load(checkpoint, Options(cache), rank.device.get(), communicator.get(),
                                    allocator.get(), nullptr);
    status = loaded.status();
    if (!status.ok()) return;
    runner = *std::move(loaded);
    EXPECT_TRUE(runner->AllocateKvCache(kBlocks, kBlocks, /*defer_graphs=*/false).ok());
  }
  ~ScaledModel() { runner.reset(); }

  std::vector<int32_t> Tokens() {
    MiniRequest request;
    for (int32_t i = 0; i < 40; ++i) request.prompt.push_back((i * 37 + 11) % 500);
    const auto tokens = RunAhead(*runner, request);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens.ok() ? *tokens : std::vector<int32_t>();
  }

  RankDevice rank;
  std::unique_ptr<SleepableAllocator> allocator;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<ModelRunner> runner;
  absl::Status status;
};

std::unique_ptr<ScaledCheckpoint> Scaled(float k, float v) {
  auto base = Checkpoint::Open(kModel);
  EXPECT_TRUE(base.ok()) << base.status();
  auto scaled = std::make_unique<ScaledCheckpoint>(*std::move(base));
  scaled->AddAll(k, v);
  return scaled;
}

// Scales that are powers of two change only the exponents of the values, and the tokens stay the same. Scales
// that saturate or lose all values change the tokens.
TEST(KvCacheDTypeTest, ScalesAreTheCheckpoints) {
  const auto plain = Scaled(1, 1), moved = Scaled(0.25f, 0.125f), saturated = Scaled(1e-4f, 1e-4f),
             lost = Scaled(1e5f, 1e5f);
  ScaledModel one(*plain), two(*moved), low(*saturated), high(*lost);
  const std::vector<int32_t> expected = one.Tokens();
  EXPECT_EQ(two.Tokens(), expected);
  EXPECT_NE(low.Tokens(), expected);
  EXPECT_NE(high.Tokens(), expected);
}

TEST(KvCacheDTypeTest, OtherTypesNeedNoScales) {
  const auto lost = Scaled(-1, 1e5f);
  EXPECT_EQ(ScaledModel(*lost).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ScaledModel(*lost, std::nullopt).status.ok());
  // An int8 cache makes scales itself.
  const auto none = Checkpoint::Open(kModel);
  ASSERT_TRUE(none.ok()) << none.status();
  ScaledModel scaled(*lost, DataType::kI8), plain(**none, DataType::kI8);
  ASSERT_TRUE(scaled.status.ok()) << scaled.status;
  EXPECT_EQ(scaled.Tokens(), plain.Tokens());
}

TEST(KvCacheDTypeTest, ReloadedWeightsMustHaveTheSameScales) {
  const auto first = Scaled(1, 0.5f), same = Scaled(1, 0.5f), other = Scaled(1, 0.25f);
  ScaledModel model(*first);
  ASSERT_TRUE(model.status.ok()) << model.status;
  const std::vector<int32_t> expected = model.Tokens();
  const absl::Status refused = model.runner->ReloadWeights(*other, nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("scales"));
  ASSERT_TRUE(model.runner->ReloadWeights(*same, nullptr).ok());
  ASSERT_TRUE(model.runner->ResetAfterWake().ok());
  EXPECT_EQ(model.Tokens(), expected);
}

// A sleep gives up all memory under the tags. The scales lie beside that memory, and the tables in the
// workspace, such as the tables of RoPE, are made again: the logits are the same bit for bit, of which the
// check has a fingerprint.
TEST(KvCacheDTypeTest, ScalesOutliveASleepBitForBit) {
  const auto scaled = Scaled(0.3f, 0.07f), plain = Scaled(1, 1);
  ScaledModel model(*scaled), other(*plain);
  const absl::StatusOr<uint64_t> first = model.runner->SelfCheck(), unscaled = other.runner->SelfCheck();
  ASSERT_TRUE(first.ok() && unscaled.ok()) << first.status() << unscaled.status();
  EXPECT_NE(*first, *unscaled) << "every bit of the scales counts";
  const std::vector<int32_t> expected = model.Tokens();
  for (const RestoreMode mode : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    const auto freed = model.allocator->Sleep(
        {{"weights", mode}, {"kv_cache", RestoreMode::kDiscard}, {"workspace", RestoreMode::kDiscard}});
    ASSERT_TRUE(freed.ok()) << freed.status();
    EXPECT_EQ(freed->size(), 3u);
    ASSERT_TRUE(model.allocator->WakeUp({}).ok());
    if (mode == RestoreMode::kDiscard) {
      ASSERT_TRUE(model.runner->ReloadWeights(*scaled, nullptr).ok());
    }
    ASSERT_TRUE(model.runner->ResetAfterWake().ok());
    EXPECT_EQ(model.runner->SelfCheck().value(), *first);
    EXPECT_EQ(model.Tokens(), expected);
  }
}

}  // namespace
}  // namespace somnus
