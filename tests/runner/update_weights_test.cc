// Models whose weights an update has brought, beside models that have loaded the weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "tests/model/weight_chunks.h"
#include "tests/runner/mini_engine.h"
#include "tests/runner/quantized_gguf.h"
#include "tests/runner/rank_group.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kModel[] = "tests/data/tiny/llama-uneven";
constexpr char kExperts[] = "tests/data/variants/glm4-moe";

std::unique_ptr<RankGroup> Load(const std::string& path, int world_size, const ModelRunnerOptions& options,
                                LoadFormat format = LoadFormat::kAuto) {
  auto group = RankGroup::Load(path, world_size, options, 64, CpuRanks(), format);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

std::vector<int32_t> Tokens(RankGroup& group) {
  MiniOptions options{.max_running = 4, .max_step_tokens = 64, .num_blocks = 64};
  const auto result = RunAll(group, {{{5, 17, 42, 9, 3, 60}, 12}}, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? (*result)[0].tokens : std::vector<int32_t>();
}

absl::Status Update(RankGroup& group, int world_size, const std::vector<v1::WeightChunk>& chunks) {
  for (int rank = 0; rank < world_size; ++rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<UpdatedTensors> update,
                     group.runner(rank).BeginWeightUpdate(/*needs_all=*/true));
    for (const v1::WeightChunk& chunk : chunks) RETURN_IF_ERROR(update->Add(chunk));
    RETURN_IF_ERROR(update->CheckComplete());
  }
  return absl::OkStatus();
}

TEST(UpdateWeights, ComputesAsIfLoadedAlsoAfterASleepThatKeepsThem) {
  struct {
    const char* model;
    int world_size;
    bool expert_parallel;
  } const cases[] = {{kModel, 1, false}, {kModel, 2, false}, {kExperts, 2, false}, {kExperts, 3, true}};
  for (const auto& [model, world_size, expert_parallel] : cases) {
    ModelRunnerOptions options = SmallRunnerOptions();
    options.expert_parallel = expert_parallel;
    const auto loaded = Load(model, world_size, options);
    const auto updated = Load(model, world_size, options, LoadFormat::kDummy);
    ASSERT_TRUE(loaded && updated);
    const std::vector<int32_t> want = Tokens(*loaded);
    EXPECT_NE(Tokens(*updated), want);
    ASSERT_EQ(updated->SleepAndWake(RestoreMode::kBackup), absl::OkStatus()) << "there is a backup now";
    ASSERT_EQ(Update(*updated, world_size, ChunksOf(loaded->checkpoint(), 3000)), absl::OkStatus());
    EXPECT_EQ(Tokens(*updated), want);
    ASSERT_EQ(updated->SleepAndWake(RestoreMode::kBackup), absl::OkStatus());
    EXPECT_EQ(Tokens(*updated), want) << "the sleep has kept the new ones";
    ASSERT_EQ(loaded->SleepAndWake(RestoreMode::kDiscard), absl::OkStatus());
    EXPECT_EQ(Tokens(*loaded), want) << "read anew";
  }
}

// The tensors as in the files, the last first, without tensors that a reader has derived.
std::vector<v1::WeightChunk> FileChunks(const Checkpoint& checkpoint, uint64_t chunk_bytes) {
  std::vector<v1::WeightChunk> chunks;
  std::vector<const TensorInfo*> tensors = checkpoint.Tensors();
  std::reverse(tensors.begin(), tensors.end());
  for (const TensorInfo* tensor : tensors) {
    if (tensor->part != nullptr) continue;
    for (v1::WeightChunk& chunk : ChunksOf(*tensor, chunk_bytes)) chunks.push_back(std::move(chunk));
  }
  return chunks;
}

// All experts of a layer come in one tensor, and so do keys and values of latent attention.
TEST(UpdateWeights, TensorsThatFilesHaveAsOneComeAsOne) {
  for (const bool expert_parallel : {false, true}) {
    for (const char* name : {"gpt-oss", "deepseek-v3", "deepseek-latent"}) {
      const std::string model = std::string("tests/data/variants/") + name;
      ModelRunnerOptions options = SmallRunnerOptions();
      options.expert_parallel = expert_parallel && std::string(name) != "deepseek-latent";
      const auto loaded = Load(model, 2, options);
      const auto updated = Load(model, 2, options, LoadFormat::kDummy);
      ASSERT_TRUE(loaded && updated);
      const std::vector<int32_t> want = Tokens(*loaded);
      EXPECT_NE(Tokens(*updated), want);
      ASSERT_EQ(Update(*updated, 2, FileChunks(loaded->checkpoint(), 1000)), absl::OkStatus());
      EXPECT_EQ(Tokens(*updated), want) << name;
    }
  }
}

// The experts as transformers' modules have them, of models whose files have each expert alone: the rows of
// gate, then the rows of up.
TEST(UpdateWeights, ExpertsComeStackedAsTrainersHaveThem) {
  const auto loaded = Load(kExperts, 2, SmallRunnerOptions());
  const auto updated = Load(kExperts, 2, SmallRunnerOptions(), LoadFormat::kDummy);
  ASSERT_TRUE(loaded && updated);
  const Checkpoint& checkpoint = loaded->checkpoint();
  const ModelConfig& config = checkpoint.config();
  std::vector<v1::WeightChunk> chunks;
  for (v1::WeightChunk& chunk : ChunksOf(checkpoint, 1 << 20)) {
    if (!absl::StrContains(chunk.name(), ".mlp.experts.")) chunks.push_back(std::move(chunk));
  }
  const int64_t experts = config.experts.num_experts, width = config.experts.expert_size;
  const auto stack = [&](const std::string& prefix, const std::string& name,
                         const std::vector<std::string>& parts, int64_t rows, int64_t cols) {
    v1::WeightChunk& chunk = chunks.emplace_back();
    chunk.set_name(prefix + name);
    chunk.set_dtype(v1::WEIGHT_DTYPE_FLOAT32);
    for (const int64_t size : {experts, rows, cols}) chunk.add_shape(size);
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (const std::string& part : parts) {
        const TensorInfo* tensor = checkpoint.Find(prefix + std::to_string(expert) + "." + part + ".weight");
        ASSERT_NE(tensor, nullptr);
        ASSERT_EQ(tensor->type, StorageType::kF32);
        chunk.mutable_data()->append(reinterpret_cast<const char*>(tensor->data), tensor->bytes);
      }
    }
  };
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.HasExperts(layer)) continue;
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    stack(prefix, "gate_up_proj", {"gate_proj", "up_proj"}, 2 * width, config.hidden_size);
    stack(prefix, "down_proj", {"down_proj"}, config.hidden_size, width);
  }
  ASSERT_EQ(Update(*updated, 2, chunks), absl::OkStatus());
  EXPECT_EQ(Tokens(*updated), Tokens(*loaded));
}

TEST(UpdateWeights, AModelThatHasReadNothingTakesAReload) {
  const auto loaded = Load(kModel, 2, SmallRunnerOptions());
  ModelRunnerOptions options = SmallRunnerOptions();
  options.read_weights = false;
  const auto empty = Load(kModel, 2, options);
  ASSERT_TRUE(loaded && empty);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(empty->runner(rank).CheckReload(loaded->checkpoint()), absl::OkStatus());
    ASSERT_EQ(empty->runner(rank).ReloadWeights(loaded->checkpoint(), nullptr), absl::OkStatus());
  }
  EXPECT_EQ(Tokens(*empty), Tokens(*loaded));
}

// All rows of the model's tensors as f32, under the names and in the order of Hugging Face.
std::vector<v1::WeightChunk> AsF32Chunks(const Checkpoint& checkpoint) {
  std::vector<v1::WeightChunk> chunks;
  const auto known = MemoryCheckpoint::Create(checkpoint.config());
  for (const TensorInfo* tensor : known->Tensors()) {
    const int64_t rows = tensor->shape[0], cols = tensor->shape.size() > 1 ? tensor->shape[1] : 1;
    std::vector<float> values(static_cast<size_t>(rows * cols));
    const absl::Status read =
        checkpoint.ReadRows(*checkpoint.Find(tensor->name), 0, rows, 0, cols, values.data());
    EXPECT_TRUE(read.ok()) << read;
    v1::WeightChunk& chunk = chunks.emplace_back();
    chunk.set_name(tensor->name);
    chunk.set_dtype(v1::WEIGHT_DTYPE_FLOAT32);
    chunk.mutable_shape()->Add(tensor->shape.begin(), tensor->shape.end());
    chunk.set_data(values.data(), values.size() * sizeof(float));
  }
  return chunks;
}

// GGUF files store the rows of q and k in another order, and in types that no update has.
TEST(UpdateWeights, AFileThatIsQuantizedTakesThemUnlessItIsComputedAsStored) {
  const std::string path = WriteQuantizedGguf({.layers = StorageType::kQ4_0});
  const auto first = Load(path, 1, SmallRunnerOptions());
  const auto second =
      Load(WriteQuantizedGguf({.layers = StorageType::kQ4_0, .seed = 2}), 1, SmallRunnerOptions());
  ASSERT_TRUE(first && second);
  const std::vector<int32_t> want = Tokens(*second);
  EXPECT_NE(Tokens(*first), want);
  const std::vector<v1::WeightChunk> chunks = AsF32Chunks(second->checkpoint());
  ASSERT_EQ(Update(*first, 1, chunks), absl::OkStatus());
  EXPECT_EQ(Tokens(*first), want);
  ModelRunnerOptions options = SmallRunnerOptions();
  options.dequantize = false;
  const auto stored = Load(path, 1, options);
  ASSERT_TRUE(stored);
  const std::vector<int32_t> before = Tokens(*stored);
  const absl::Status refused = Update(*stored, 1, chunks);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("start the server with --dequantize"));
  EXPECT_EQ(Tokens(*stored), before);
}

}  // namespace
}  // namespace somnus
