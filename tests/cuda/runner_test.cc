// The whole runner on a GPU against results of transformers, with and without graphs and steps in flight, and
// after sleep.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "tests/checkpoint/lora_files.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda/stream_nccl.h"
#include "tests/model/golden.h"
#include "tests/runner/branch_tree.h"
#include "tests/runner/mini_engine.h"
#include "tests/runner/nan_checkpoint.h"

namespace somnus::cuda_test {
namespace {

constexpr char kModel[] = "tests/data/tiny/llama-uneven";

struct GoldenParam {
  const char* model;
  int world_size;
  bool expert_parallel = false;
};

#ifdef SOMNUS_CUDA_EMULATOR
// The cases of each model, which have up to 33 tokens of prompt: the emulator takes seconds for one.
constexpr size_t kMaxCases = 4;
#else
constexpr size_t kMaxCases = 1000;
#endif

class GpuGolden : public testing::TestWithParam<GoldenParam> {};

TEST_P(GpuGolden, SameAsTransformersInF32) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto result = RunGolden(std::string("tests/data/") + GetParam().model, GetParam().world_size,
                                DataType::kF32, GpuRanks(), kMaxCases, GetParam().expert_parallel);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(result->worst, 1e-3);
  EXPECT_EQ(result->mismatch, "");
}

std::string GoldenName(const testing::TestParamInfo<GoldenParam>& info) {
  std::string name = std::string(info.param.model) + "_" + std::to_string(info.param.world_size) +
                     (info.param.expert_parallel ? "_expert_parallel" : "");
  for (const char separator : {'-', '/'}) std::replace(name.begin(), name.end(), separator, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, GpuGolden,
    testing::Values(GoldenParam{"tiny/llama-uneven", 1}, GoldenParam{"tiny/llama-uneven", 2},
                    GoldenParam{"tiny/qwen3", 1}, GoldenParam{"tiny/opt", 1},
                    GoldenParam{"variants/granite", 1}, GoldenParam{"variants/glm4", 1},
                    GoldenParam{"variants/olmo2", 2}, GoldenParam{"variants/ministral3", 1},
                    GoldenParam{"variants/qwen3-moe", 2}, GoldenParam{"variants/glm4-moe", 1},
                    GoldenParam{"variants/phi3-longrope", 1}, GoldenParam{"variants/gemma2", 1},
                    GoldenParam{"variants/gemma3", 1}, GoldenParam{"variants/deepseek-v3", 2},
                    GoldenParam{"variants/gpt-oss", 1}),
    GoldenName);

INSTANTIATE_TEST_SUITE_P(
    Ranks, GpuGolden,
    testing::Values(GoldenParam{"variants/mistral-window", 3}, GoldenParam{"variants/smollm3", 2},
                    GoldenParam{"variants/olmo3", 4}, GoldenParam{"variants/mixtral", 3},
                    GoldenParam{"variants/glm4-moe-lite", 4}, GoldenParam{"variants/gpt-oss-mxfp4", 2},
                    GoldenParam{"variants/qwen2-moe", 2}, GoldenParam{"variants/granite-hybrid", 1},
                    GoldenParam{"variants/qwen3-moe", 3, /*expert_parallel=*/true},
                    GoldenParam{"gguf_variants/glm4-moe", 1}, GoldenParam{"gguf_variants/ministral3", 2}),
    GoldenName);

// A step that begins a sequence of `tokens` in slot 0.
v1::StepRequest BeginStep(int64_t step_id, const std::vector<int32_t>& tokens) {
  v1::StepRequest step;
  step.set_step_id(step_id);
  v1::NewSequence* const fresh = step.add_new_sequences();
  fresh->mutable_token_ids()->Add(tokens.begin(), tokens.end());
  fresh->set_num_prompt_tokens(static_cast<int32_t>(tokens.size()));
  fresh->add_block_ids(1);
  *step.add_samplings() = GreedySampling();
  step.add_sequences()->set_num_tokens(static_cast<int32_t>(tokens.size()));
  return step;
}

class GpuMasks : public testing::TestWithParam<int> {};

// Rank 0 alone has masks, and every rank goes on with rank 0's token.
TEST_P(GpuMasks, ATokenOfTheMaskIsEveryRanksInput) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto group = RankGroup::Load(kModel, GetParam(), SmallRunnerOptions(), 16, GpuRanks());
  ASSERT_TRUE(group.ok()) << group.status();
  constexpr int32_t kToken = 37;
  const std::vector<int32_t> prompt = {5, 17, 3};
  v1::StepRequest masked = BeginStep(1, prompt);
  masked.set_awaits_masks(true);
  v1::SlotMask* const mask = masked.mutable_masks()->add_masks();
  mask->set_allowed(std::string(static_cast<size_t>(((*group)->config().vocab_size + 31) / 32 * 4), '\0'));
  (*mask->mutable_allowed())[kToken / 8] = static_cast<char>(1 << (kToken % 8));
  const auto first = (*group)->Execute(masked);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->tokens(0).token_id(), kToken);
  v1::StepRequest decode;
  decode.set_step_id(2);
  decode.add_sequences()->set_num_tokens(1);
  const auto second = (*group)->Execute(decode);
  ASSERT_TRUE(second.ok()) << second.status();
  v1::StepRequest whole = BeginStep(3, {5, 17, 3, kToken});
  whole.add_freed_slots(0);
  const auto expected = (*group)->Execute(whole);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(second->tokens(0).token_id(), expected->tokens(0).token_id());
}
INSTANTIATE_TEST_SUITE_P(Ranks, GpuMasks, testing::Values(1, 2));

// One sequence decodes in a graph of four: the three padded rows are no tokens, before a sleep and after.
TEST(GpuExpertLoad, PaddedRowsOfGraphsDoNotCount) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ModelRunnerOptions options = SmallRunnerOptions();
  options.graph_sizes = {4};
  options.expert_load = true;
  const auto group = RankGroup::Load("tests/data/variants/qwen3-moe", 1, options, 16, GpuRanks());
  ASSERT_TRUE(group.ok()) << group.status();
  constexpr int kExperts = 7, kPerToken = 3;
  const auto expect_tokens = [&](const v1::StepRequest& step, uint32_t tokens) {
    const auto reply = (*group)->Execute(step);
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->expert_loads_size(), 1);
    const v1::ExpertLoad& load = reply->expert_loads(0);
    EXPECT_EQ(load.first_expert(), 0);
    ASSERT_EQ(load.num_experts(), kExperts);
    const std::vector<int32_t> layers(load.layers().begin(), load.layers().end());
    ASSERT_EQ(layers, (std::vector<int32_t>{0, 2}));
    ASSERT_EQ(load.tokens_size(), 2 * kExperts);
    for (auto row = load.tokens().begin(); row != load.tokens().end(); row += kExperts) {
      EXPECT_EQ(std::accumulate(row, row + kExperts, 0u), tokens * kPerToken);
      EXPECT_LE(*std::max_element(row, row + kExperts), tokens);
    }
  };
  for (const int64_t first_step : {1, 3}) {
    expect_tokens(BeginStep(first_step, {5, 17, 3, 9, 21}), 5);
    v1::StepRequest decode;
    decode.set_step_id(first_step + 1);
    decode.add_sequences()->set_num_tokens(1);
    expect_tokens(decode, 1);
    ASSERT_TRUE((*group)->SleepAndWake(RestoreMode::kBackup).ok());
  }
}

std::unique_ptr<RankGroup> Load(const ModelRunnerOptions& options, uint64_t seed = 1) {
  auto group = RankGroup::Load(kModel, 1, options, 64, GpuRanks(seed));
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

MiniOptions Small() {
  MiniOptions options{.max_running = 4, .max_step_tokens = 64, .num_blocks = 64};
  return options;
}

TEST(GpuAdapters, GraphsComputeTheAdapterOfEachRow) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto base = Checkpoint::Open(kModel);
  ASSERT_TRUE(base.ok()) << base.status();
  const LoraRecipe recipe{.rank = 3};
  const auto whole =
      RankGroup::Load(WriteMerged(kModel, **base, recipe), 1, SmallRunnerOptions(), 64, GpuRanks());
  ASSERT_TRUE(whole.ok()) << whole.status();
  ModelRunnerOptions options = SmallRunnerOptions();
  options.max_adapters = 3;
  options.max_loras = 1;
  options.max_lora_rank = 4;
  const auto group = Load(options), plain = Load(SmallRunnerOptions());
  ASSERT_TRUE(group && plain);
  v1::WorkerAdapter adapter, other;
  adapter.set_slot(2);
  adapter.set_id(1);
  adapter.set_path(WriteLora(**base, recipe));
  other.set_slot(3);
  other.set_id(2);
  other.set_path(WriteLora(**base, {.rank = 4, .seed = 9}));
  ASSERT_EQ(group->runner(0).SetAdapters({adapter, other}), absl::OkStatus());
  const MiniRequest without{{5, 17, 42, 9}, 6};
  MiniRequest with = without, with_other = without;
  with.adapter_slot = 2;
  with_other.adapter_slot = 3;
  const auto merged = RunAll(**whole, {without}, Small()), unchanged = RunAll(*plain, {without}, Small());
  ASSERT_TRUE(merged.ok() && unchanged.ok());
  ASSERT_NE((*merged)[0].tokens, (*unchanged)[0].tokens);
  for (const bool sleeps : {false, true}) {
    if (sleeps) {
      ASSERT_EQ(group->SleepAndWake(RestoreMode::kBackup), absl::OkStatus());
    }
    const auto together = RunAll(*group, {with, without}, Small());
    ASSERT_TRUE(together.ok()) << together.status();
    EXPECT_EQ((*together)[0].tokens, (*merged)[0].tokens);
    EXPECT_EQ((*together)[1].tokens, (*unchanged)[0].tokens);
    const auto displaced = RunAll(*group, {with_other}, Small());  // there is no second place
    ASSERT_TRUE(displaced.ok()) << displaced.status();
    EXPECT_NE((*displaced)[0].tokens, (*merged)[0].tokens);
  }
}

// Sequences of different lengths, some sampled, one with everything that changes logits.
std::vector<MiniRequest> Mixed() {
  std::vector<MiniRequest> requests(5);
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j <= 7 * i; ++j) requests[i].prompt.push_back((11 * j + 3 * i) % 50);
    requests[i].max_tokens = 4 + 3 * i;
    requests[i].seed = 100 + i;
  }
  requests[1].sampling.set_temperature(0.8f);
  requests[1].sampling.set_num_logprobs(3);
  requests[2].sampling.set_temperature(1);
  requests[2].sampling.set_top_k(20);
  requests[2].sampling.set_top_p(0.9f);
  requests[2].sampling.set_min_p(0.01f);
  v1::StepSampling& all = requests[3].sampling;
  all.set_repetition_penalty(1.3f);
  all.set_frequency_penalty(0.4f);
  all.set_presence_penalty(0.2f);
  (*all.mutable_logit_bias())[7] = 2.5f;
  all.set_min_tokens(3);
  all.add_suppress_token_ids(5);
  all.add_bad_words()->add_token_ids(9);
  v1::BadWord* pair = all.add_bad_words();
  pair->add_token_ids(7);
  pair->add_token_ids(11);
  all.set_num_logprobs(2);
  for (int id = 0; id < 40; ++id) requests[4].sampling.add_allowed_token_ids(id);
  requests[4].sampling.set_num_prompt_logprobs(2);
  return requests;
}

std::vector<MiniResult> RunMixed(RankGroup& group) {
  auto results = RunAll(group, Mixed(), Small());
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *std::move(results) : std::vector<MiniResult>(5);
}

void ExpectSameTokens(const std::vector<MiniResult>& a, const std::vector<MiniResult>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].tokens, b[i].tokens) << "request " << i;
}

void ExpectCloseLogprobs(const std::vector<v1::StepLogprobs>& a, const std::vector<v1::StepLogprobs>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].token_ids_size(), b[i].token_ids_size());
    EXPECT_EQ(a[i].rank(), b[i].rank());
    for (int j = 0; j < a[i].logprobs_size(); ++j) {
      EXPECT_EQ(a[i].token_ids(j), b[i].token_ids(j));
      EXPECT_NEAR(a[i].logprobs(j), b[i].logprobs(j), 1e-4);
    }
  }
}

TEST(GpuRunner, TheSelfCheckIsTheSameAfterRequestsAndSleeps) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const std::unique_ptr<RankGroup> group = Load(SmallRunnerOptions());
  ASSERT_TRUE(group);
  const absl::StatusOr<uint64_t> first = group->SelfCheck();
  ASSERT_TRUE(first.ok()) << first.status();
  RunMixed(*group);
  EXPECT_EQ(group->SelfCheck().value(), *first);
  for (const RestoreMode mode : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    ASSERT_TRUE(group->SleepAndWake(mode).ok());
    EXPECT_EQ(group->SelfCheck().value(), *first);
  }
}

TEST(GpuRunner, SameAsTheCpu) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  auto cpu = RankGroup::Load(kModel, 1, SmallRunnerOptions(), 64);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const auto gpu = Load(SmallRunnerOptions());
  ASSERT_NE(gpu, nullptr);
  const std::vector<MiniResult> expected = RunMixed(**cpu), got = RunMixed(*gpu);
  ExpectSameTokens(expected, got);
  for (size_t i = 0; i < got.size(); ++i) {
    ExpectCloseLogprobs(expected[i].logprobs, got[i].logprobs);
    ExpectCloseLogprobs(expected[i].prompt_logprobs, got[i].prompt_logprobs);
  }
}

// A key or value whose f32 differs in the last bit between the two may lie on the other side of a tie, which
// moves the number by an eighth of itself at most, or with int8 by a 127th of the head's largest. moves: how
// far the cache must move log-probabilities at least.
void ExpectNearTheCpus(DataType cache, int64_t block_bytes, double moves) {
  ModelRunnerOptions options = SmallRunnerOptions();
  options.kv_cache_dtype = cache;
  auto cpu = RankGroup::Load(kModel, 1, options, 64),
       exact = RankGroup::Load(kModel, 1, SmallRunnerOptions(), 64);
  ASSERT_TRUE(cpu.ok() && exact.ok());
  const auto gpu = Load(options);
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->runner(0).kv_block_bytes(), block_bytes);
  const auto expected = RunAll(**cpu, {Mixed()[4]}, Small()), got = RunAll(*gpu, {Mixed()[4]}, Small()),
             without = RunAll(**exact, {Mixed()[4]}, Small());
  ASSERT_TRUE(expected.ok() && got.ok() && without.ok()) << got.status();
  double moved = 0;
  ASSERT_EQ((*got)[0].prompt_logprobs.size(), (*expected)[0].prompt_logprobs.size());
  for (size_t i = 0; i < (*got)[0].prompt_logprobs.size(); ++i) {
    const double value = (*got)[0].prompt_logprobs[i].logprobs(0);
    EXPECT_NEAR(value, (*expected)[0].prompt_logprobs[i].logprobs(0), 1e-3) << i;
    moved = std::max(moved, std::fabs(value - (*without)[0].prompt_logprobs[i].logprobs(0)));
  }
  EXPECT_GT(moved, moves);  // the caches differ indeed
}

// Layers, K and V, tokens, heads; dims, and a scale.
TEST(GpuRunner, Float8CacheIsNearTheCpus) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ExpectNearTheCpus(DataType::kF8E4M3, 2 * 2 * 16 * 3 * 8, 3e-3);
}
TEST(GpuRunner, Int8CacheIsNearTheCpus) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ExpectNearTheCpus(DataType::kI8, 2 * 2 * 16 * 3 * (8 + 4), 1e-3);
}

TEST(GpuRunner, RefusesACacheThatNoKernelReads) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ModelRunnerOptions options = SmallRunnerOptions();
  options.kv_cache_dtype = DataType::kBF16;
  const absl::Status status = RankGroup::Load(kModel, 1, options, 64, GpuRanks()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("--kv-cache-dtype"), std::string::npos) << status;
}

TEST(GpuRunner, SameWithoutGraphs) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ModelRunnerOptions eager = SmallRunnerOptions();
  eager.enforce_eager = true;
  const auto with = Load(SmallRunnerOptions()), without = Load(eager);
  ASSERT_TRUE(with != nullptr && without != nullptr);
  ExpectSameTokens(RunMixed(*with), RunMixed(*without));
}

// The stream between the stages goes through the host, and each stage has separate graphs.
TEST(GpuRunner, SameInTwoStages) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto one = Load(SmallRunnerOptions());
  ModelRunnerOptions staged = SmallRunnerOptions();
  staged.pipeline.num_stages = 2;
  const auto two = RankGroup::Load(kModel, 2, staged, 64, GpuRanks());
  ASSERT_TRUE(one != nullptr && two.ok()) << two.status();
  const std::vector<MiniResult> expected = RunMixed(*one);
  ExpectSameTokens(expected, RunMixed(**two));
  ASSERT_TRUE((*two)->SleepAndWake(RestoreMode::kBackup).ok());
  ExpectSameTokens(expected, RunMixed(**two));
}

// The stream goes from device to device, and no step waits for it on the host.
TEST(GpuRunner, SameInThreeStagesLinkedByNccl) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  constexpr char kFourLayers[] = "tests/data/variants/smollm3-four";
  const auto one = RankGroup::Load(kFourLayers, 1, SmallRunnerOptions(), 64, GpuRanks());
  ASSERT_TRUE(one.ok()) << one.status();
  const std::vector<MiniResult> expected = RunMixed(**one);
  std::vector<std::shared_ptr<PackedMessage>> messages;
  FakeNccl nccl;
  nccl.SetCarrier(StreamCarrier(&messages));
  ModelRunnerOptions staged = SmallRunnerOptions();
  staged.pipeline.num_stages = 3;
  const auto three = RankGroup::Load(kFourLayers, 3, staged, 64, LinkedGpuRanks(nccl));
  ASSERT_TRUE(three.ok()) << three.status();
  const int before = nccl.calls("ncclSend");
  ExpectSameTokens(expected, RunMixed(**three));
  const int sends = nccl.calls("ncclSend") - before;
  EXPECT_GT(sends, 0);
  EXPECT_EQ(sends % 2, 0) << "as many from the second stage as from the first";
  ASSERT_TRUE((*three)->SleepAndWake(RestoreMode::kBackup).ok());
  ExpectSameTokens(expected, RunMixed(**three));
  EXPECT_EQ(nccl.calls("ncclSend"), before + 2 * sends);
  EXPECT_TRUE(nccl.violations().empty()) << nccl.violations()[0];
}

TEST(GpuRunner, SameInAnyOrderOfThreads) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto first = Load(SmallRunnerOptions());
  ASSERT_NE(first, nullptr);
  const std::vector<MiniResult> expected = RunMixed(*first);
  for (uint64_t seed : {2, 3}) {
    const auto other = Load(SmallRunnerOptions(), seed);
    ASSERT_NE(other, nullptr);
    ExpectSameTokens(expected, RunMixed(*other));
  }
}

// Sizes that no batch can have must not write behind the inputs' arrays.
TEST(GpuRunner, GraphSizesBeyondTheLargestBatchAreLeftOut) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ModelRunnerOptions options = SmallRunnerOptions();
  options.max_num_batched_tokens = 3;
  options.graph_sizes = {2, 4, 4096};
  const auto group = Load(options);
  ASSERT_NE(group, nullptr);
  MiniOptions run = Small();
  run.max_step_tokens = 3;
  const auto results = RunAll(*group, Mixed(), run);
  ASSERT_TRUE(results.ok()) << results.status();
  const auto usual = Load(SmallRunnerOptions());
  ASSERT_NE(usual, nullptr);
  ExpectSameTokens(RunMixed(*usual), *results);
}

// Graphs and addresses outlive the memory below.
TEST(GpuRunner, SameAfterSleep) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto group = Load(SmallRunnerOptions());
  ASSERT_NE(group, nullptr);
  const std::vector<MiniResult> before = RunMixed(*group);
  const auto freed = group->allocator(0).Sleep({{"weights", RestoreMode::kBackup},
                                                {"kv_cache", RestoreMode::kDiscard},
                                                {"workspace", RestoreMode::kDiscard}});
  ASSERT_TRUE(freed.ok()) << freed.status();
  ASSERT_TRUE(group->allocator(0).WakeUp({}).ok());
  ASSERT_TRUE(group->runner(0).ResetAfterWake().ok());
  ExpectSameTokens(before, RunMixed(*group));
}

TEST(GpuRunner, SameWithStepsInFlight) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto group = Load(SmallRunnerOptions());
  ASSERT_NE(group, nullptr);
  const std::vector<MiniRequest> requests = Mixed();
  const std::vector<MiniResult> expected = RunMixed(*group);
  // But the sequence whose bad words look at tokens would wait for a reply that this thread reads only later.
  for (size_t i : {0, 1, 2, 4}) {
    const auto tokens = RunAhead(group->runner(0), requests[i]);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, expected[i].tokens) << i;
  }
}

// Tokens that the coordinator names take the place of the tokens on the device; steps have graphs.
TEST(GpuRunner, BranchesAreTheCpus) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto group = Load(SmallRunnerOptions());
  auto cpu = RankGroup::Load(kModel, 1, SmallRunnerOptions(), 64);
  ASSERT_TRUE(group != nullptr && cpu.ok()) << cpu.status();
  v1::StepSampling sampling = GreedySampling();
  sampling.set_num_logprobs(6);
  BranchTree tree(group.get(), sampling, 13, 1), cpu_tree(cpu->get(), sampling, 13, 1);
  const auto leaves = tree.Run(6), expected = cpu_tree.Run(6);
  ASSERT_TRUE(leaves.ok() && expected.ok()) << leaves.status() << expected.status();
  ASSERT_EQ(leaves->size(), expected->size());
  for (size_t i = 0; i < leaves->size(); ++i) {
    EXPECT_EQ((*leaves)[i].tokens, (*expected)[i].tokens);
    ExpectCloseLogprobs({(*leaves)[i].sampled.logprobs()}, {(*expected)[i].sampled.logprobs()});
  }
  EXPECT_EQ(tree.neighbour(), cpu_tree.neighbour());
}

TEST(GpuRunner, NanLogitsEndOneSequence) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  constexpr int32_t kNanToken = 77;
  const auto group = Load(SmallRunnerOptions());
  ASSERT_NE(group, nullptr);
  std::vector<MiniRequest> requests = {
      {{5, 6, 7}, 6}, {{8, 9, 10, 11}, 6}, {{3, kNanToken, 4}, 6}, {{12}, 6}};
  const auto expected = RunAll(*group, requests, Small());
  ASSERT_TRUE(expected.ok()) << expected.status();
  const NanCheckpoint nan(group->checkpoint(), kNanToken);
  ASSERT_TRUE(group->runner(0).ReloadWeights(nan, nullptr).ok());
  for (const float temperature : {0.0f, 1.0f}) {
    requests[2].sampling.set_temperature(temperature);
    const auto results = RunAll(*group, requests, Small());
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t i : {0, 1, 3}) EXPECT_EQ((*results)[i].tokens, (*expected)[i].tokens) << i;
    EXPECT_TRUE((*results)[2].tokens.empty());
    EXPECT_EQ((*results)[2].error.code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace somnus::cuda_test
