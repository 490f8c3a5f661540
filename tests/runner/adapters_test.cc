// Models with adapters beside models into whose weights the adapters were merged, on one to four ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/checkpoint/lora_files.h"
#include "tests/checkpoint/writers.h"
#include "tests/runner/mini_engine.h"
#include "tests/runner/rank_group.h"
#include "worker/runner/adapter_reader.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kModel[] = "tests/data/tiny/llama-uneven";

ModelRunnerOptions WithAdapters(int32_t max_loras = 2) {
  ModelRunnerOptions options = SmallRunnerOptions();
  options.max_adapters = 2;
  options.max_loras = max_loras;
  options.max_lora_rank = 4;
  return options;
}

std::unique_ptr<RankGroup> Load(const std::string& path, int world_size, const ModelRunnerOptions& options) {
  auto group = RankGroup::Load(path, world_size, options, 64);
  EXPECT_TRUE(group.ok()) << path << ": " << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

v1::WorkerAdapter Adapter(int32_t slot, const std::string& path, uint64_t id = 0) {
  v1::WorkerAdapter adapter;
  adapter.set_slot(slot);
  adapter.set_id(id != 0 ? id : static_cast<uint64_t>(slot));
  adapter.set_name("poet");
  adapter.set_path(path);
  return adapter;
}

absl::Status SetAdapters(RankGroup& group, const std::vector<v1::WorkerAdapter>& adapters) {
  absl::Status first;
  for (int rank = 0; rank < group.world_size(); ++rank)
    first.Update(group.runner(rank).SetAdapters(adapters));
  return first;
}

MiniRequest Request(int32_t adapter_slot, int32_t last = 60) {
  MiniRequest request{{5, 17, 42, 9, 3, last}, 12};
  request.sampling.set_num_logprobs(0);
  request.sampling.set_num_prompt_logprobs(0);
  request.adapter_slot = adapter_slot;
  return request;
}

MiniOptions Small() { return {.max_running = 4, .max_step_tokens = 64, .num_blocks = 64}; }

std::vector<MiniResult> Answers(RankGroup& group, const std::vector<MiniRequest>& requests) {
  auto results = RunAll(group, requests, Small());
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *std::move(results) : std::vector<MiniResult>(requests.size());
}

std::vector<float> Logprobs(const MiniResult& result) {
  std::vector<float> logprobs;
  for (const v1::StepLogprobs& one : result.prompt_logprobs) logprobs.push_back(one.logprobs(0));
  for (const v1::StepLogprobs& one : result.logprobs) logprobs.push_back(one.logprobs(0));
  return logprobs;
}

void ExpectNear(const MiniResult& got, const MiniResult& want, const std::string& what) {
  EXPECT_EQ(got.tokens, want.tokens) << what;
  const std::vector<float> a = Logprobs(got), b = Logprobs(want);
  ASSERT_EQ(a.size(), b.size()) << what;
  ASSERT_FALSE(a.empty()) << what;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4) << what << ", token " << i;
}

// `num_stages`: of a pipeline, with so many ranks in all as `world_sizes` says.
void CompareWithMerged(const std::string& path, const LoraRecipe& recipe, const std::vector<int>& world_sizes,
                       int num_stages = 1) {
  const auto base = Checkpoint::Open(path);
  ASSERT_TRUE(base.ok()) << base.status();
  const std::string adapter = WriteLora(**base, recipe), merged = WriteMerged(path, **base, recipe);
  const auto whole = Load(merged, 1, SmallRunnerOptions());
  ASSERT_TRUE(whole != nullptr);
  const MiniResult want = Answers(*whole, {Request(0)})[0];
  for (const int world_size : world_sizes) {
    ModelRunnerOptions options = WithAdapters();
    options.pipeline.num_stages = num_stages;
    const auto group = Load(path, world_size, options);
    ASSERT_TRUE(group != nullptr);
    ASSERT_EQ(SetAdapters(*group, {Adapter(2, adapter)}), absl::OkStatus());
    const std::vector<MiniResult> results = Answers(*group, {Request(2), Request(0)});
    ExpectNear(results[0], want, path);
    EXPECT_NE(Logprobs(results[1]), Logprobs(want)) << path << ": the adapter changes something";
  }
}

TEST(Adapters, EqualMergedWeights) {
  CompareWithMerged(kModel, {.rank = 1}, {1, 2, 3, 4});
  CompareWithMerged(
      kModel, {.rank = 4, .alpha = 2, .rank_stabilized = true, .targets = {"o_proj", "down_proj"}}, {1, 2});
  LoraRecipe patterns{.rank = 2, .targets = {"k_proj", "v_proj", "gate_proj"}, .all_linear = true};
  patterns.rank_pattern["model.layers.1.self_attn.k_proj"] = 3;
  patterns.alpha_pattern["model.layers.0.mlp.gate_proj"] = 1.5;
  CompareWithMerged(kModel, patterns, {1, 2});
}

TEST(Adapters, EqualMergedWeightsInAllKindsOfLayers) {
  for (const char* path :
       {"tests/data/tiny/qwen3", "tests/data/tiny/opt", "tests/data/variants/phi3-window",
        "tests/data/variants/glm4", "tests/data/variants/olmo2", "tests/data/variants/gemma2"}) {
    CompareWithMerged(path, {.rank = 3}, {1, 2});
  }
}

// A stage has the matrices of the layers in that stage alone.
TEST(Adapters, EqualMergedWeightsInStages) { CompareWithMerged(kModel, {.rank = 3}, {2, 4}, 2); }

class TwoAdapters : public testing::Test {
 protected:
  void SetUp() override {
    const auto base = Checkpoint::Open(kModel);
    ASSERT_TRUE(base.ok()) << base.status();
    first_ = WriteLora(**base, {.rank = 2, .seed = 1});
    second_ = WriteLora(**base, {.rank = 4, .targets = {"q_proj", "up_proj"}, .seed = 2});
    group_ = Load(kModel, 2, WithAdapters());
    ASSERT_EQ(SetAdapters(*group_, {Adapter(1, first_), Adapter(2, second_)}), absl::OkStatus());
  }
  // The tokens and log-probabilities of base, first and second, each alone.
  std::vector<std::vector<float>> Alone() {
    std::vector<std::vector<float>> alone;
    for (const int32_t slot : {0, 1, 2}) alone.push_back(Logprobs(Answers(*group_, {Request(slot)})[0]));
    return alone;
  }

  std::string first_, second_;
  std::unique_ptr<RankGroup> group_;
};

TEST_F(TwoAdapters, ABatchGivesTheBitsOfEachAlone) {
  const auto without = Load(kModel, 2, SmallRunnerOptions());
  const std::vector<std::vector<float>> alone = Alone();
  EXPECT_EQ(alone[0], Logprobs(Answers(*without, {Request(0)})[0])) << "a server without adapters";
  EXPECT_NE(alone[1], alone[0]);
  EXPECT_NE(alone[2], alone[1]);
  const std::vector<MiniResult> together =
      Answers(*group_, {Request(2), Request(0), Request(1), Request(0, 61)});
  EXPECT_EQ(Logprobs(together[0]), alone[2]);
  EXPECT_EQ(Logprobs(together[1]), alone[0]);
  EXPECT_EQ(Logprobs(together[2]), alone[1]);
  EXPECT_EQ(Logprobs(together[3]), Logprobs(Answers(*without, {Request(0, 61)})[0]));
}

TEST_F(TwoAdapters, SurviveSleepsAndReloads) {
  const std::vector<std::vector<float>> before = Alone();
  for (const RestoreMode mode : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    ASSERT_EQ(group_->SleepAndWake(mode), absl::OkStatus());
    EXPECT_EQ(Alone(), before);
  }
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_EQ(group_->runner(rank).ReloadWeights(group_->checkpoint(), nullptr), absl::OkStatus());
  EXPECT_EQ(Alone(), before);
}

TEST_F(TwoAdapters, AreReplacedAndDroppedByTheirIds) {
  const std::vector<std::vector<float>> before = Alone();
  ASSERT_EQ(SetAdapters(*group_, {Adapter(2, first_, 7)}), absl::OkStatus());
  EXPECT_EQ(Logprobs(Answers(*group_, {Request(2)})[0]), before[1]) << "the same adapter in another slot";
  const absl::Status error = Answers(*group_, {Request(1)})[0].error;
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error.message()), HasSubstr("there is no adapter in slot 1"));
  // An id that is held is not read again.
  ASSERT_EQ(SetAdapters(*group_, {Adapter(2, "/nowhere", 7)}), absl::OkStatus());
  EXPECT_EQ(Logprobs(Answers(*group_, {Request(2)})[0]), before[1]);
}

TEST_F(TwoAdapters, AreReadAheadOnceForTheNextChange) {
  const std::vector<std::vector<float>> before = Alone();
  const v1::WorkerAdapter ahead = Adapter(1, second_, 7), other = Adapter(2, first_, 8);
  const auto read = [&] {
    for (int rank = 0; rank < group_->world_size(); ++rank) {
      ModelRunner& runner = group_->runner(rank);
      std::vector<std::shared_ptr<const HostAdapter>> adapters;
      for (const v1::WorkerAdapter& adapter : {ahead, other}) {
        auto one = runner.adapter_reader()->Read(adapter, [] { return false; });
        ASSERT_TRUE(one.ok()) << one.status();
        adapters.push_back(*std::move(one));
      }
      runner.AddReadAdapters(std::move(adapters));
    }
  };
  const auto bytes = [&] { return group_->runner(0).adapter_host_bytes(); };
  const int64_t bytes_before = bytes();
  read();
  const int64_t bytes_read = bytes();
  EXPECT_GT(bytes_read, bytes_before);
  read();
  EXPECT_EQ(bytes(), bytes_read) << "in place of those before";
  EXPECT_EQ(Alone(), before) << "nothing has changed";
  ASSERT_EQ(SetAdapters(*group_, {Adapter(1, "/nowhere", 7)}), absl::OkStatus()) << "no file is read";
  EXPECT_EQ(Logprobs(Answers(*group_, {Request(1)})[0]), before[2]);
  EXPECT_FALSE(SetAdapters(*group_, {Adapter(2, "/nowhere", 8)}).ok()) << "the other one was dropped";
  read();
  EXPECT_FALSE(SetAdapters(*group_, {Adapter(0, first_)}).ok());
  EXPECT_FALSE(SetAdapters(*group_, {Adapter(2, "/nowhere", 8)}).ok()) << "a failed change drops all";
  const auto leaves = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(group_->runner(0).adapter_reader()->Read(other, leaves).status()));
}

// With a single place the two adapters are brought in turn.
TEST_F(TwoAdapters, TakeTurnsInOnePlace) {
  const std::vector<std::vector<float>> before = Alone();
  group_ = Load(kModel, 2, WithAdapters(1));
  ASSERT_EQ(SetAdapters(*group_, {Adapter(1, first_), Adapter(2, second_)}), absl::OkStatus());
  EXPECT_EQ(Alone(), before);
  EXPECT_EQ(Alone(), before) << "the first one again";
  ASSERT_EQ(group_->SleepAndWake(RestoreMode::kBackup), absl::OkStatus());
  EXPECT_EQ(Alone(), before);
  ASSERT_EQ(SetAdapters(*group_, {Adapter(1, second_, 7), Adapter(2, second_)}), absl::OkStatus());
  EXPECT_EQ(Alone(), (std::vector<std::vector<float>>{before[0], before[2], before[2]}));
  const absl::Status error = RunAll(*group_, {Request(1), Request(2)}, Small()).status();
  EXPECT_THAT(std::string(error.message()), HasSubstr("more adapters than max_loras, 1"));
}

TEST_F(TwoAdapters, ABadAdapterChangesNothing) {
  const std::vector<std::vector<float>> before = Alone();
  const absl::Status missing = SetAdapters(*group_, {Adapter(1, "/nowhere", 9)});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("adapter 'poet' (/nowhere)"));
  EXPECT_FALSE(SetAdapters(*group_, {Adapter(3, first_)}).ok());
  EXPECT_FALSE(SetAdapters(*group_, {Adapter(0, first_)}).ok());
  EXPECT_FALSE(SetAdapters(*group_, {Adapter(1, first_), Adapter(1, second_)}).ok());
  EXPECT_EQ(Alone(), before);
  const auto without = Load(kModel, 1, SmallRunnerOptions());
  EXPECT_THAT(std::string(SetAdapters(*without, {Adapter(1, first_)}).message()), HasSubstr("--enable-lora"));
  EXPECT_EQ(SetAdapters(*without, {}), absl::OkStatus());
}

}  // namespace
}  // namespace somnus
