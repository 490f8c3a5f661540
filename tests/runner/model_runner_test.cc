#include "worker/runner/model_runner.h"

#include <cmath>
#include <functional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runner/mini_engine.h"
#include "tests/runner/nan_checkpoint.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kModel[] = "tests/data/tiny/llama-uneven";

std::unique_ptr<RankGroup> Load(int world_size = 1) {
  auto group = RankGroup::Load(kModel, world_size, SmallRunnerOptions(), 64);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

MiniOptions Small() {
  MiniOptions options{.max_running = 4, .max_step_tokens = 64, .num_blocks = 64};
  return options;
}

std::vector<int32_t> Generate(RankGroup& group, const MiniRequest& request) {
  const auto result = RunAll(group, {request}, Small());
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? (*result)[0].tokens : std::vector<int32_t>();
}

// A checkpoint that lacks a tensor, or has the tensor in a wrong shape.
class DamagedCheckpoint : public Checkpoint {
 public:
  DamagedCheckpoint(const Checkpoint& good, std::string name, std::optional<std::vector<int64_t>> shape)
      : good_(good), name_(std::move(name)) {
    if (!shape) return;
    tensor_ = *good.Find(name_);
    tensor_->shape = *shape;
  }
  const ModelConfig& config() const override { return good_.config(); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override {
    return absl::UnimplementedError("not needed");
  }
  const TensorInfo* Find(absl::string_view name) const override {
    if (name != name_) return good_.Find(name);
    return tensor_ ? &*tensor_ : nullptr;
  }
  std::vector<const TensorInfo*> Tensors() const override { return good_.Tensors(); }
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override {
    return good_.ReadRows(tensor, row_begin, row_end, col_begin, col_end, out);
  }
  absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out) const override {
    return good_.ReadStoredRows(tensor, row_begin, row_end, col_begin, col_end, out);
  }

 private:
  const Checkpoint& good_;
  const std::string name_;
  std::optional<TensorInfo> tensor_;
};

TEST(ModelRunnerTest, NamesTheTensorThatIsMissingOrMisshapen) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const absl::Status missing =
      group->runner(0).ReloadWeights(DamagedCheckpoint(group->checkpoint(), name, {}), nullptr);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr(name));
  const absl::Status misshapen =
      group->runner(0).ReloadWeights(DamagedCheckpoint(group->checkpoint(), name, {{72, 135}}), nullptr);
  EXPECT_EQ(misshapen.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"model.layers.1.mlp.down_proj.weight", "[72, 135]", "[72, 136]"}) {
    EXPECT_THAT(misshapen.message(), HasSubstr(part));
  }
}

// Tensors of the same shapes, under a different configuration.
class OtherConfig : public DamagedCheckpoint {
 public:
  OtherConfig(const Checkpoint& good, const std::function<void(ModelConfig&)>& change)
      : DamagedCheckpoint(good, "none", {}), config_(good.config()) {
    change(config_);
  }
  const ModelConfig& config() const override { return config_; }

 private:
  ModelConfig config_;
};

TEST(ModelRunnerTest, ReloadsOnlyTheModelThatWasLoaded) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  const auto reload = [&](const std::function<void(ModelConfig&)>& change) {
    return group->runner(0).ReloadWeights(OtherConfig(group->checkpoint(), change), nullptr);
  };
  const std::function<void(ModelConfig&)> changes[] = {
      [](ModelConfig& c) { c.norm_eps *= 2; }, [](ModelConfig& c) { c.rope.theta *= 2; },
      [](ModelConfig& c) { c.activation = Activation::kRelu; },
      [](ModelConfig& c) { c.max_position_embeddings -= 1; }};
  for (const auto& change : changes) {
    const absl::Status status = reload(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("is not the model that was loaded"));
  }
  EXPECT_TRUE(reload([](ModelConfig& c) { c.eos_token_ids = {7}; }).ok());
}

TEST(ModelRunnerTest, RefusesOptionsThatCannotWork) {
  ModelRunnerOptions options = SmallRunnerOptions();
  options.max_num_seqs = 0;
  EXPECT_EQ(RankGroup::Load(kModel, 1, options, 8).status().code(), absl::StatusCode::kInvalidArgument);
  options = SmallRunnerOptions();
  options.max_model_len = 257;  // OPT's table has 256 positions
  EXPECT_EQ(RankGroup::Load("tests/data/tiny/opt", 1, options, 8).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ModelRunnerTest, ReportsProgressUpToTheTotal) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  std::atomic<int64_t> most{0}, total{0};
  ASSERT_TRUE(group->runner(0)
                  .ReloadWeights(group->checkpoint(),
                                 [&](int64_t done, int64_t all) {
                                   total = all;
                                   for (int64_t seen = most;
                                        done > seen && !most.compare_exchange_weak(seen, done);) {
                                   }
                                 })
                  .ok());
  EXPECT_GT(total, 4 * 512 * 72);
  EXPECT_EQ(most, total);
}

TEST(ModelRunnerTest, FirstErrorStays) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  v1::StepRequest bad;
  bad.add_sequences()->set_slot(99);
  EXPECT_EQ(group->Execute(bad).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status later = group->Execute(v1::StepRequest()).status();
  EXPECT_EQ(later.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(later.message(), HasSubstr("slot 99"));
}

TEST(ModelRunnerTest, EmptyStepIsLegal) {
  std::unique_ptr<RankGroup> group = Load(2);
  ASSERT_TRUE(group);
  v1::StepRequest request;
  request.set_step_id(17);
  const auto reply = group->Execute(request);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->step_id(), 17);
}

TEST(ModelRunnerTest, KvCacheSizeIsCheckedAndCanChange) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  EXPECT_EQ(group->runner(0).AllocateKvCache(1, 1, /*defer_graphs=*/false).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group->runner(0).AllocateKvCache(1 << 30, 1 << 30, /*defer_graphs=*/false).code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<int32_t> before = Generate(*group, {{5, 6, 7}});
  ASSERT_TRUE(group->runner(0).AllocateKvCache(64, 64, /*defer_graphs=*/false).ok());
  EXPECT_GE(group->allocator(0).ResidentBytes().at("kv_cache"), 64 * group->runner(0).kv_block_bytes());
  EXPECT_EQ(Generate(*group, {{5, 6, 7}}), before);
}

TEST(ModelRunnerTest, SleepsAndWakesAtBothLevels) {
  std::unique_ptr<RankGroup> group = Load(2);
  ASSERT_TRUE(group);
  const MiniRequest request{{3, 1, 4, 1, 5, 9, 2, 6}};
  const std::vector<int32_t> before = Generate(*group, request);
  for (const RestoreMode weights : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    const absl::Status woken = group->SleepAndWake(weights);
    ASSERT_TRUE(woken.ok()) << woken;
    EXPECT_EQ(Generate(*group, request), before);
  }
}

TEST(ModelRunnerTest, SamplesTheSameOnAnyNumberOfRanks) {
  MiniRequest request{{10, 20, 30}, 24};
  request.sampling.set_temperature(1.0f);
  request.sampling.set_top_p(0.95f);
  request.seed = 1234;
  std::unique_ptr<RankGroup> one = Load(1), three = Load(3);
  ASSERT_TRUE(one && three);
  const std::vector<int32_t> tokens = Generate(*one, request);
  EXPECT_EQ(Generate(*three, request), tokens);
  request.seed = 1235;
  EXPECT_NE(Generate(*one, request), tokens);
}

TEST(ModelRunnerTest, ConstraintsHold) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  MiniRequest request{{10, 20, 30}, 8};
  const std::vector<int32_t> free = Generate(*group, request);
  request.sampling.add_bad_words()->add_token_ids(free[0]);
  EXPECT_NE(Generate(*group, request)[0], free[0]);
  request.sampling.clear_bad_words();
  request.sampling.add_allowed_token_ids(7);
  request.sampling.add_allowed_token_ids(8);
  for (int32_t token : Generate(*group, request)) EXPECT_TRUE(token == 7 || token == 8);
  request.sampling.clear_allowed_token_ids();
  (*request.sampling.mutable_logit_bias())[99] = 1000;
  for (int32_t token : Generate(*group, request)) EXPECT_EQ(token, 99);
}

TEST(ModelRunnerTest, LogprobsAreOfTheRawLogits) {
  std::unique_ptr<RankGroup> group = Load(2);
  ASSERT_TRUE(group);
  MiniRequest request{{10, 20, 30}, 4};
  request.sampling.set_num_logprobs(3);
  const auto plain = RunAll(*group, {request}, Small());
  ASSERT_TRUE(plain.ok());
  const v1::StepLogprobs& first = (*plain)[0].logprobs[0];
  ASSERT_EQ(first.token_ids_size(), 4);
  EXPECT_EQ(first.rank(), 1);
  EXPECT_EQ(first.token_ids(0), first.token_ids(1));
  EXPECT_EQ(first.token_ids(0), (*plain)[0].tokens[0]);
  EXPECT_GE(first.logprobs(1), first.logprobs(2));
  // A bias changes the chosen token, not the probability that is reported.
  (*request.sampling.mutable_logit_bias())[first.token_ids(2)] = 1000;
  const auto biased = RunAll(*group, {request}, Small());
  ASSERT_TRUE(biased.ok());
  const v1::StepLogprobs& changed = (*biased)[0].logprobs[0];
  EXPECT_EQ(changed.token_ids(0), first.token_ids(2));
  EXPECT_EQ(changed.logprobs(0), first.logprobs(2));
  EXPECT_EQ(changed.rank(), 2);
}

constexpr int32_t kNanToken = 77;

// Four sequences share every step; the third has the token whose embedding is not a number.
std::vector<MiniRequest> FourRequests() {
  std::vector<MiniRequest> requests = {
      {{5, 6, 7}, 6}, {{8, 9, 10, 11}, 6}, {{3, kNanToken, 4}, 6}, {{12}, 6}};
  requests[1].sampling.set_temperature(0.9f);
  requests[1].sampling.set_num_logprobs(1);
  return requests;
}

TEST(ModelRunnerTest, NanLogitsEndOneSequence) {
  for (const int world_size : {1, 2}) {
    std::unique_ptr<RankGroup> group = Load(world_size);
    ASSERT_TRUE(group);
    std::vector<MiniRequest> requests = FourRequests();
    const auto expected = RunAll(*group, requests, Small());
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (int rank = 0; rank < world_size; ++rank) {
      const NanCheckpoint nan(group->checkpoint(), kNanToken);
      ASSERT_TRUE(group->runner(rank).ReloadWeights(nan, nullptr).ok());
    }
    enum Kind { kGreedy, kSampled, kFiltered, kLogprobs, kPromptLogprobs };
    for (const Kind kind : {kGreedy, kSampled, kFiltered, kLogprobs, kPromptLogprobs}) {
      SCOPED_TRACE(testing::Message() << world_size << " ranks, kind " << kind);
      requests = FourRequests();
      v1::StepSampling& sampling = requests[2].sampling;
      if (kind == kSampled || kind == kFiltered) sampling.set_temperature(1);
      if (kind == kFiltered) sampling.set_top_p(0.9f);
      if (kind == kLogprobs) sampling.set_num_logprobs(2);
      if (kind == kPromptLogprobs) sampling.set_num_prompt_logprobs(0);
      const auto results = RunAll(*group, requests, Small());
      ASSERT_TRUE(results.ok()) << results.status();
      for (size_t i : {0, 1, 3}) {
        EXPECT_EQ((*results)[i].tokens, (*expected)[i].tokens) << i;
        EXPECT_TRUE((*results)[i].error.ok()) << (*results)[i].error;
      }
      EXPECT_TRUE((*results)[2].tokens.empty());
      EXPECT_EQ((*results)[2].error.code(), absl::StatusCode::kInternal);
      EXPECT_THAT((*results)[2].error.message(), HasSubstr("not finite"));
    }
  }
}

// A bias hides the only NaN from the choice of the token, but not from the log-probabilities.
TEST(ModelRunnerTest, LogprobsThatAreNotNumbersEndASequence) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  const NanCheckpoint nan(group->checkpoint(), kNanToken, "lm_head.weight");
  ASSERT_TRUE(group->runner(0).ReloadWeights(nan, nullptr).ok());
  MiniRequest request{{10, 20, 30}, 8};
  (*request.sampling.mutable_logit_bias())[kNanToken] = -INFINITY;
  MiniRequest with_logprobs = request;
  with_logprobs.sampling.set_num_logprobs(0);
  const auto results = RunAll(*group, {request, with_logprobs}, Small());
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].tokens.size(), 8u);
  EXPECT_TRUE((*results)[1].tokens.empty());
  EXPECT_EQ((*results)[1].error.code(), absl::StatusCode::kInternal);
}

// The next sequence in the same blocks does not read the rest of an earlier sequence in the cache.
TEST(ModelRunnerTest, BlocksWithNanCanBeUsedAgain) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  const MiniRequest request{{1, 2, 3}, 20};
  const std::vector<int32_t> expected = Generate(*group, request);
  const NanCheckpoint nan(group->checkpoint(), kNanToken);
  ASSERT_TRUE(group->runner(0).ReloadWeights(nan, nullptr).ok());
  MiniRequest bad;
  bad.prompt.assign(40, kNanToken);
  MiniOptions one_by_one = Small();
  one_by_one.max_running = 1;
  const auto results = RunAll(*group, {bad, request}, one_by_one);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_FALSE((*results)[0].error.ok());
  EXPECT_EQ((*results)[1].tokens, expected);
}

TEST(ModelRunnerTest, ASequenceThatIsNotValidEndsAlone) {
  std::unique_ptr<RankGroup> group = Load(2);
  ASSERT_TRUE(group);
  std::vector<MiniRequest> requests = FourRequests();
  const auto expected = RunAll(*group, requests, Small());
  ASSERT_TRUE(expected.ok()) << expected.status();
  requests[0].sampling.set_temperature(-1);
  requests[2].prompt[0] = 512;
  const auto results = RunAll(*group, requests, Small());
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT((*results)[0].error.message(), HasSubstr("temperature"));
  EXPECT_EQ((*results)[2].error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT((*results)[2].error.message(), HasSubstr("token id 512"));
  EXPECT_EQ((*results)[1].tokens, (*expected)[1].tokens);
  EXPECT_EQ((*results)[3].tokens, (*expected)[3].tokens);
}

TEST(ModelRunnerTest, WhereEveryTokenIsForbiddenNoneIsChosen) {
  std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  MiniRequest request{{10, 20, 30}, 8};
  request.sampling.add_allowed_token_ids(7);
  request.sampling.add_bad_words()->add_token_ids(7);
  for (const float temperature : {0.0f, 1.0f}) {
    request.sampling.set_temperature(temperature);
    const auto results = RunAll(*group, {request}, Small());
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_TRUE((*results)[0].tokens.empty());
    EXPECT_EQ((*results)[0].error.code(), absl::StatusCode::kOutOfRange);
  }
}

// A reply is read while the next step runs already: the reply must not change under the reader.
TEST(ModelRunnerTest, RepliesMayBeReadAStepLater) {
  const auto group = Load();
  ASSERT_NE(group, nullptr);
  MiniRequest request{{5, 17, 3, 40, 8}, 24};
  const std::vector<int32_t> expected = Generate(*group, request);
  ASSERT_GT(std::set<int32_t>(expected.begin(), expected.end()).size(), 2u)
      << "the tokens must differ to tell";
  const auto ahead = RunAhead(group->runner(0), request);
  ASSERT_TRUE(ahead.ok()) << ahead.status();
  EXPECT_EQ(*ahead, expected);
  request.sampling.set_temperature(1);
  request.seed = 3;
  request.sampling.set_num_logprobs(2);
  const auto sampled = RunAhead(group->runner(0), request);
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  EXPECT_EQ(*sampled, Generate(*group, request));
}

}  // namespace
}  // namespace somnus
