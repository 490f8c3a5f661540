// Forks through the whole runner: a fork of a prompt samples, and goes on, exactly as a separate sequence
// with the same seed does.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runner/mini_engine.h"
#include "tests/runner/same_bits.h"

namespace somnus {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kForks = 10;

// Slot 0 computes the prompt, slots 1 to kForks fork slot 0; then all decode.
class ForkedRun {
 public:
  ForkedRun(RankGroup* group, MiniRequest request) : group_(group), request_(std::move(request)) {}

  absl::StatusOr<std::vector<MiniResult>> Run() {
    v1::StepRequest first = FirstStep();
    for (int32_t i = 0; i < request_.max_tokens; ++i) {
      v1::StepRequest step = i == 0 ? std::move(first) : DecodeStep(i);
      step.set_step_id(i + 1);
      const absl::StatusOr<v1::StepReply> reply = group_->Execute(step);
      if (!reply.ok()) return reply.status();
      if (reply->tokens_size() != 1 + kForks) return absl::InternalError(reply->DebugString());
      for (const v1::SampledToken& token : reply->tokens()) {
        results_[token.slot()].tokens.push_back(token.token_id());
        if (token.has_logprobs()) results_[token.slot()].logprobs.push_back(token.logprobs());
      }
    }
    v1::StepRequest last;
    last.set_step_id(request_.max_tokens + 1);
    for (int32_t slot = 0; slot <= kForks; ++slot) last.add_freed_slots(slot);
    const absl::StatusOr<v1::StepReply> reply = group_->Execute(last);
    if (!reply.ok()) return reply.status();
    return results_;
  }

 private:
  int32_t prompt_len() const { return static_cast<int32_t>(request_.prompt.size()); }
  int32_t num_full() const { return prompt_len() / kBlockSize; }
  // A slot's own blocks come after the shared blocks.
  int32_t OwnBlock(int32_t slot, int32_t index) const {
    return 1 + num_full() + slot * 4 + index - num_full();
  }

  v1::StepRequest FirstStep() {
    v1::StepRequest step;
    *step.add_samplings() = request_.sampling;
    v1::NewSequence* source = step.add_new_sequences();
    source->mutable_token_ids()->Add(request_.prompt.begin(), request_.prompt.end());
    source->set_num_prompt_tokens(prompt_len());
    source->set_seed(request_.seed);
    v1::ScheduledSequence* scheduled = step.add_sequences();
    scheduled->set_num_tokens(prompt_len());
    const bool has_partial = prompt_len() % kBlockSize != 0;
    for (int32_t slot = 0; slot <= kForks; ++slot) {
      google::protobuf::RepeatedField<int32_t>* blocks = source->mutable_block_ids();
      if (slot > 0) {
        v1::SequenceFork* fork = step.add_forks();
        fork->set_slot(slot);
        fork->set_seed(request_.seed + slot);
        blocks = fork->mutable_block_ids();
      }
      for (int32_t block = 1; block <= num_full(); ++block) blocks->Add(block);
      if (has_partial) blocks->Add(OwnBlock(slot, num_full()));
    }
    return step;
  }

  v1::StepRequest DecodeStep(int32_t index) {
    v1::StepRequest step;
    const int32_t position = prompt_len() + index - 1;
    for (int32_t slot = 0; slot <= kForks; ++slot) {
      if (index == 1 && slot > 0 && prompt_len() % kBlockSize != 0) {
        v1::BlockCopy* copy = step.add_copies();
        copy->set_src(OwnBlock(0, num_full()));
        copy->set_dst(OwnBlock(slot, num_full()));
      }
      v1::ScheduledSequence* scheduled = step.add_sequences();
      scheduled->set_slot(slot);
      scheduled->set_num_tokens(1);
      if (position % kBlockSize == 0) scheduled->add_new_block_ids(OwnBlock(slot, position / kBlockSize));
    }
    return step;
  }

  RankGroup* const group_;
  const MiniRequest request_;
  std::vector<MiniResult> results_{static_cast<size_t>(1 + kForks)};
};

class ForkTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ModelRunnerOptions options = SmallRunnerOptions();
    options.max_num_seqs = 1 + kForks;
    auto group = RankGroup::Load("tests/data/tiny/qwen3", GetParam(), options, 64);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }

  MiniRequest Prompt(int32_t length) const {
    MiniRequest request;
    for (int32_t i = 0; i < length; ++i) request.prompt.push_back((i * 37 + 11) % 200);
    request.max_tokens = 9;
    request.seed = 5;
    return request;
  }

  // The tokens of each choice alone.
  std::vector<MiniResult> Alone(const MiniRequest& request) {
    std::vector<MiniResult> results;
    for (int32_t slot = 0; slot <= kForks; ++slot) {
      MiniRequest own = request;
      own.seed = request.seed + slot;
      const auto result = RunAll(*group_, {own}, {});
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) results.push_back((*result)[0]);
    }
    return results;
  }

  void ExpectTheSame(const MiniRequest& request) {
    const std::vector<MiniResult> alone = Alone(request);
    const auto forked = ForkedRun(group_.get(), request).Run();
    ASSERT_TRUE(forked.ok()) << forked.status();
    ASSERT_EQ(forked->size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) ExpectSame((*forked)[i], alone[i]);
  }

  std::unique_ptr<RankGroup> group_;
};

TEST_P(ForkTest, GreedyForksAreAllAlike) {
  for (const int32_t length : {1, 5, 16, 40}) ExpectTheSame(Prompt(length));
}

// As many choices as the prompt has tokens: every row of the step samples.
TEST_P(ForkTest, AsManyRowsAsTokens) { ExpectTheSame(Prompt(1 + kForks)); }

TEST_P(ForkTest, SampledForksHaveTheirOwnSeeds) {
  MiniRequest request = Prompt(21);
  request.sampling.set_temperature(1.2f);
  request.sampling.set_top_k(100);
  request.sampling.set_num_logprobs(4);
  request.sampling.set_repetition_penalty(1.3f);
  request.sampling.set_frequency_penalty(0.4f);
  ExpectTheSame(request);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ForkTest, testing::Values(1, 2));

}  // namespace
}  // namespace somnus
