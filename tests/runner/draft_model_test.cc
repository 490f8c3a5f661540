// A draft model beside the model: whatever the draft model proposes, the tokens stay the same; and where the
// draft model is the model itself, all proposals are right, also after sleeps, swaps and updates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/model/weight_chunks.h"
#include "tests/runner/drafted_sequences.h"
#include "tests/runner/same_bits.h"
#include "tests/runner/swapped_sequence.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kTiny[] = "tests/data/tiny/";
constexpr int32_t kMost = 5;

ModelRunnerOptions WithDraftModel(const std::string& draft) {
  ModelRunnerOptions options = SmallRunnerOptions();
  options.draft_model_path = kTiny + draft;
  options.num_speculative_tokens = kMost;
  return options;
}

std::unique_ptr<RankGroup> Load(const std::string& model, const std::string& draft, int world_size) {
  auto group = RankGroup::Load(kTiny + model, world_size, WithDraftModel(draft), 64);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

std::vector<MiniRequest> Requests(const v1::StepSampling& sampling) {
  std::vector<MiniRequest> requests;
  for (const int32_t prompt_len : {3, 15, 16, 21}) {
    MiniRequest request;
    for (int32_t i = 0; i < prompt_len; ++i) request.prompt.push_back((11 * i + prompt_len) % 50);
    request.max_tokens = 30 + prompt_len;
    request.sampling = sampling;
    request.seed = static_cast<uint64_t>(prompt_len);
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Counts {
  int drafted = 0, accepted = 0;
};

// Runs the requests as the draft model proposes; the tokens must be `wanted`.
Counts RunDrafted(RankGroup* group, const std::vector<MiniRequest>& requests,
                  const std::vector<MiniResult>& wanted, uint32_t seed) {
  DraftedSequences drafted(group, requests, wanted, seed, kMost);
  const std::vector<MiniResult> results = drafted.Run();
  EXPECT_EQ(results.size(), wanted.size());
  for (size_t i = 0; i < std::min(results.size(), wanted.size()); ++i) ExpectSame(results[i], wanted[i]);
  return {drafted.num_drafted(), drafted.num_accepted()};
}

class DraftModelTest : public testing::TestWithParam<int> {
 protected:
  // The tokens of the model without a draft model.
  static std::vector<MiniResult> Wanted(const std::string& model, const std::vector<MiniRequest>& requests) {
    auto group = RankGroup::Load(kTiny + model, GetParam(), SmallRunnerOptions(), 64);
    EXPECT_TRUE(group.ok()) << group.status();
    if (!group.ok()) return {};
    auto wanted = RunAll(**group, requests, {.num_blocks = 64});
    EXPECT_TRUE(wanted.ok()) << wanted.status();
    return wanted.ok() ? *std::move(wanted) : std::vector<MiniResult>();
  }
};

TEST_P(DraftModelTest, ThatIsTheModelIsAlwaysRight) {
  const std::vector<MiniRequest> requests = Requests(GreedySampling());
  const std::vector<MiniResult> wanted = Wanted("qwen3", requests);
  const std::unique_ptr<RankGroup> group = Load("qwen3", "qwen3", GetParam());
  ASSERT_NE(group, nullptr);
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    const Counts counts = RunDrafted(group.get(), requests, wanted, seed);
    EXPECT_GT(counts.drafted, 40);
    EXPECT_EQ(counts.accepted, counts.drafted);
  }
  for (const RestoreMode mode : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    ASSERT_EQ(group->SleepAndWake(mode), absl::OkStatus());
    const Counts counts = RunDrafted(group.get(), requests, wanted, 4);
    EXPECT_GT(counts.drafted, 40);
    EXPECT_EQ(counts.accepted, counts.drafted) << "after a sleep";
  }
}

// A draft model of another shape: on some ranks the draft model has heads where the model has none, or the
// other way round.
TEST_P(DraftModelTest, ThatIsAnotherOneChangesNothing) {
  v1::StepSampling sampled = GreedySampling();
  sampled.set_temperature(0.8f);
  sampled.set_repetition_penalty(1.2f);
  sampled.set_num_logprobs(2);
  const std::pair<const char*, const char*> models[] = {
      {"qwen3", "llama-rope3"}, {"llama-uneven", "opt"}, {"opt", "qwen2"}};
  for (const auto& [model, draft] : models) {
    const std::unique_ptr<RankGroup> group = Load(model, draft, GetParam());
    ASSERT_NE(group, nullptr);
    for (const v1::StepSampling& sampling : {GreedySampling(), sampled}) {
      const std::vector<MiniRequest> requests = Requests(sampling);
      const Counts counts = RunDrafted(group.get(), requests, Wanted(model, requests), 1);
      EXPECT_GT(counts.drafted, 40) << draft;
      EXPECT_LT(counts.accepted, counts.drafted) << draft;
    }
  }
}

TEST_P(DraftModelTest, ItsPartOfABlockIsSwappedAlong) {
  const std::unique_ptr<RankGroup> group = Load("llama-uneven", "llama-uneven", GetParam());
  ASSERT_NE(group, nullptr);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 21; ++i) prompt.push_back((11 * i + 3) % 50);
  const std::vector<int32_t> wanted = SwappedSequence(group.get(), prompt).Generate(24, /*period=*/0);
  for (const int period : {1, 5}) {
    SwappedSequence swapped(group.get(), prompt, /*guess_period=*/1);
    EXPECT_EQ(swapped.Generate(23, period), (std::vector<int32_t>{wanted.begin(), wanted.end() - 1}));
    const std::vector<int32_t> next(wanted.begin() + 22, wanted.end());
    EXPECT_EQ(swapped.guesses(), next) << "every " << period;
  }
}

// Where guesses are rare, the draft model computes the tokens in between at the next guess.
TEST_P(DraftModelTest, CatchesUpWithWhatItWasNotAskedAbout) {
  ModelRunnerOptions options = WithDraftModel("llama-uneven");
  auto group = RankGroup::Load(std::string(kTiny) + "llama-uneven", GetParam(), options, 64);
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 21; ++i) prompt.push_back((11 * i + 3) % 50);
  const std::vector<int32_t> wanted = SwappedSequence(group->get(), prompt).Generate(40, /*period=*/0);
  for (const size_t guess_period : {2u, 7u, 17u}) {
    SwappedSequence sequence(group->get(), prompt, guess_period);
    EXPECT_EQ(sequence.Generate(39, /*period=*/0), (std::vector<int32_t>{wanted.begin(), wanted.end() - 1}));
    std::vector<int32_t> next;
    for (size_t size = prompt.size(); size < wanted.size() - 1; ++size) {
      if (size % guess_period == 0) next.push_back(wanted[size + 1]);
    }
    EXPECT_FALSE(next.empty());
    EXPECT_EQ(sequence.guesses(), next) << "every " << guess_period;
  }
}

// One sequence in slot 0, with blocks from 1 on.
v1::StepRequest Beginning(const std::vector<int32_t>& prompt, int32_t num_computed, int32_t num_tokens) {
  v1::StepRequest step;
  *step.add_samplings() = GreedySampling();
  v1::NewSequence* sequence = step.add_new_sequences();
  sequence->mutable_token_ids()->Add(prompt.begin(), prompt.end());
  sequence->set_num_prompt_tokens(static_cast<int32_t>(prompt.size()));
  sequence->set_num_computed_tokens(num_computed);
  for (int32_t block = 1; block <= 8; ++block) sequence->add_block_ids(block);
  step.add_sequences()->set_num_tokens(num_tokens);
  return step;
}

std::vector<int32_t> LongPrompt() {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 100; ++i) prompt.push_back((11 * i + i / 7) % 50);
  return prompt;
}

// The first sequence asked for no guesses: the draft model has computed nothing of the prefix that the second
// sequence takes over.
TEST_P(DraftModelTest, ComputesASharedPrefixThatNobodyHasAskedAbout) {
  const std::unique_ptr<RankGroup> group = Load("qwen3", "qwen3", GetParam());
  ASSERT_NE(group, nullptr);
  const std::vector<int32_t> prompt = LongPrompt();
  ASSERT_TRUE(group->Execute(Beginning(prompt, 0, 64)).ok());
  v1::StepRequest second = Beginning(prompt, 64, 36);
  second.add_freed_slots(0);
  second.mutable_sequences(0)->set_num_proposals(kMost);
  auto reply = group->Execute(second);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->drafts_size(), 0) << "100 tokens are missing, and a step has 64";
  std::vector<int32_t> sampled = {reply->tokens(0).token_id()}, guesses;
  for (int i = 0; i < 1 + kMost; ++i) {
    v1::StepRequest next;
    next.add_sequences()->set_num_tokens(1);
    next.mutable_sequences(0)->set_num_proposals(i == 0 ? kMost : 0);
    reply = group->Execute(next);
    ASSERT_TRUE(reply.ok()) << reply.status();
    sampled.push_back(reply->tokens(0).token_id());
    if (i > 0) continue;
    ASSERT_EQ(reply->drafts_size(), 1);
    guesses.assign(reply->drafts(0).token_ids().begin(), reply->drafts(0).token_ids().end());
  }
  EXPECT_EQ(guesses, (std::vector<int32_t>{sampled.begin() + 2, sampled.end()}));
}

// An update brings the model's weights alone, so where all were discarded the draft model's are read again.
TEST_P(DraftModelTest, IsThereAfterAnUpdateOfWeightsThatWereDiscarded) {
  const std::vector<MiniRequest> requests = Requests(GreedySampling());
  const std::vector<MiniResult> wanted = Wanted("llama-uneven", requests);
  const std::unique_ptr<RankGroup> group = Load("llama-uneven", "llama-uneven", GetParam());
  ASSERT_NE(group, nullptr);
  const std::vector<v1::WeightChunk> chunks = ChunksOf(group->checkpoint(), 3000);
  for (int rank = 0; rank < GetParam(); ++rank) {
    SleepableAllocator& allocator = group->allocator(rank);
    ASSERT_TRUE(allocator.Sleep({{"weights", RestoreMode::kDiscard}}).ok());
    ASSERT_TRUE(allocator.WakeUp({}).ok());
    ASSERT_EQ(group->runner(rank).ResetAfterWake(), absl::OkStatus());
    auto update = group->runner(rank).BeginWeightUpdate(/*needs_all=*/true);
    ASSERT_TRUE(update.ok()) << update.status();
    for (const v1::WeightChunk& chunk : chunks) ASSERT_EQ((*update)->Add(chunk), absl::OkStatus());
    ASSERT_EQ((*update)->CheckComplete(), absl::OkStatus());
  }
  const Counts counts = RunDrafted(group.get(), requests, wanted, 1);
  EXPECT_GT(counts.drafted, 40);
  EXPECT_EQ(counts.accepted, counts.drafted);
}

TEST_P(DraftModelTest, CountsForTheMemoryOfBlocks) {
  auto alone = RankGroup::Load(std::string(kTiny) + "llama-uneven", GetParam(), SmallRunnerOptions(), 64);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const std::unique_ptr<RankGroup> group = Load("llama-uneven", "llama-uneven", GetParam());
  ASSERT_NE(group, nullptr);
  ModelRunner& runner = group->runner(0);
  EXPECT_EQ(runner.kv_block_bytes(), 2 * (*alone)->runner(0).kv_block_bytes());
  EXPECT_THAT(runner.weight_types(), HasSubstr("; draft model: float32"));
  const auto resident = [&] { return group->allocator(0).ResidentBytes().at("kv_cache"); };
  ASSERT_EQ(runner.AllocateKvCache(4096, 1000, /*defer_graphs=*/false), absl::OkStatus());
  EXPECT_GE(resident(), 1000 * runner.kv_block_bytes());
  ASSERT_EQ(runner.ResizeKvCache(4000), absl::OkStatus());
  EXPECT_GE(resident(), 4000 * runner.kv_block_bytes());
  ASSERT_EQ(runner.ResizeKvCache(100), absl::OkStatus());
  EXPECT_LT(resident(), 2000 * runner.kv_block_bytes());
}

INSTANTIATE_TEST_SUITE_P(Ranks, DraftModelTest, testing::Values(1, 2, 4));

TEST(DraftModelLoadTest, AnErrorNamesTheFlagAndThePath) {
  const auto load = [](const ModelRunnerOptions& options) {
    const auto group = RankGroup::Load(std::string(kTiny) + "qwen3", 1, options, 64);
    return std::string(group.status().message());
  };
  EXPECT_THAT(load(WithDraftModel("nothing")), HasSubstr("--draft-model: tests/data/tiny/nothing: "));
  ModelRunnerOptions options = WithDraftModel("opt");
  options.max_model_len = 300;
  EXPECT_THAT(load(options),
              HasSubstr("--draft-model: tests/data/tiny/opt: max_model_len 300 is more than the 256"));
  ModelRunnerOptions latent = WithDraftModel("../variants/deepseek-latent");
  latent.kv_cache_dtype = DataType::kF8E4M3;
  EXPECT_THAT(load(latent), HasSubstr("--kv-cache-dtype: fp8 and int8 are not for deepseek-latent"));
}

TEST(DraftModelLoadTest, ProposalsAreOfSequencesThatSampleAndNoMoreThanAreMade) {
  for (const bool has_draft_model : {false, true}) {
    auto loaded = RankGroup::Load(std::string(kTiny) + "qwen3", 1,
                                  has_draft_model ? WithDraftModel("qwen3") : SmallRunnerOptions(), 64);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const auto run = [&](int32_t num_tokens, int32_t num_proposals) {
      EXPECT_EQ((*loaded)->runner(0).BeginEpoch(), absl::OkStatus());
      v1::StepRequest step;
      *step.add_samplings() = GreedySampling();
      v1::NewSequence* sequence = step.add_new_sequences();
      for (const int32_t token : {5, 6, 7}) sequence->add_token_ids(token);
      sequence->set_num_prompt_tokens(3);
      sequence->add_block_ids(1);
      step.add_sequences()->set_num_tokens(num_tokens);
      step.mutable_sequences(0)->set_num_proposals(num_proposals);
      return (*loaded)->Execute(step).status();
    };
    EXPECT_EQ(run(3, has_draft_model ? kMost : 0), absl::OkStatus());
    EXPECT_TRUE(absl::IsInvalidArgument(run(3, has_draft_model ? kMost + 1 : 1)));
    EXPECT_TRUE(absl::IsInvalidArgument(run(3, -1)));
    EXPECT_TRUE(absl::IsInvalidArgument(run(2, 1)));
  }
}

}  // namespace
}  // namespace somnus
