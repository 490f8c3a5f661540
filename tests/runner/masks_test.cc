// Steps that await masks, through the whole runner: a sequence samples the likeliest token that the mask
// allows, on one rank and on two, where rank 0 alone has masks.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/runner/rank_group.h"

namespace somnus {
namespace {

constexpr int32_t kNumBlocks = 8;

// Hands out masks once the test has set the masks.
class TestMasks : public StepMaskSource {
 public:
  void Set(const v1::StepMasks& masks) {
    absl::MutexLock lock(&mu_);
    masks_ = masks;
  }
  absl::StatusOr<v1::StepMasks> AwaitMasks(int64_t /*group_epoch*/, int64_t step_id) override {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return masks_.step_id() == step_id; };
    mu_.Await(absl::Condition(&there));
    return masks_;
  }

 private:
  absl::Mutex mu_;
  v1::StepMasks masks_ ABSL_GUARDED_BY(mu_);
};

class MasksTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    auto group = RankGroup::Load("tests/data/tiny/qwen3", GetParam(), SmallRunnerOptions(), 64);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }

  // A step that begins a sequence in `slot`.
  v1::StepRequest Begin(int32_t slot, const v1::StepSampling& sampling) {
    v1::StepRequest step;
    step.set_step_id(++step_id_);
    v1::NewSequence* const fresh = step.add_new_sequences();
    fresh->set_slot(slot);
    fresh->mutable_token_ids()->Add(prompt_.begin(), prompt_.end());
    fresh->set_num_prompt_tokens(static_cast<int32_t>(prompt_.size()));
    for (int32_t i = 0; i < kNumBlocks; ++i) fresh->add_block_ids(1 + slot * kNumBlocks + i);
    *step.add_samplings() = sampling;
    v1::ScheduledSequence* const scheduled = step.add_sequences();
    scheduled->set_slot(slot);
    scheduled->set_num_tokens(static_cast<int32_t>(prompt_.size()));
    return step;
  }
  v1::StepRequest Decode(int32_t slot) {
    v1::StepRequest step;
    step.set_step_id(++step_id_);
    step.add_sequences()->set_slot(slot);
    step.mutable_sequences(0)->set_num_tokens(1);
    return step;
  }
  v1::StepReply Run(const v1::StepRequest& step) {
    const absl::StatusOr<v1::StepReply> reply = group_->Execute(step);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(v1::StepReply());
  }
  void Free(int32_t slot) {
    v1::StepRequest step;
    step.set_step_id(++step_id_);
    step.add_freed_slots(slot);
    Run(step);
  }

  int32_t vocab_size() const { return group_->config().vocab_size; }
  // A mask of all ids, or of none, beside `ids`, which are the exceptions.
  std::string Mask(bool allows, const std::vector<int32_t>& ids) const {
    std::string mask(static_cast<size_t>((vocab_size() + 31) / 32 * 4), allows ? '\xff' : '\0');
    for (const int32_t id : ids) mask[id / 8] ^= static_cast<char>(1 << (id % 8));
    return mask;
  }
  static void Add(int32_t slot, const std::string& allowed, v1::StepRequest* step) {
    step->set_awaits_masks(true);
    step->mutable_masks()->set_step_id(step->step_id());
    v1::SlotMask* const mask = step->mutable_masks()->add_masks();
    mask->set_slot(slot);
    mask->set_allowed(allowed);
  }
  // The likeliest tokens after the prompt.
  std::vector<int32_t> Likeliest(int32_t count) {
    v1::StepSampling sampling = GreedySampling();
    sampling.set_num_logprobs(count);
    const v1::StepReply reply = Run(Begin(0, sampling));
    Free(0);
    const auto& ids = reply.tokens(0).logprobs().token_ids();
    return {ids.begin() + 1, ids.end()};
  }

  std::unique_ptr<RankGroup> group_;
  const std::vector<int32_t> prompt_ = {5, 17, 3, 90, 41};
  int64_t step_id_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Ranks, MasksTest, testing::Values(1, 2));

TEST_P(MasksTest, TheLikeliestTokenOfTheMaskIsSampled) {
  const std::vector<int32_t> likeliest = Likeliest(4);
  v1::StepRequest step = Begin(0, GreedySampling());
  Add(0, Mask(true, {likeliest[0], likeliest[1]}), &step);
  EXPECT_EQ(Run(step).tokens(0).token_id(), likeliest[2]);
  const int32_t unlikely = (likeliest[3] + 1) % vocab_size();
  v1::StepRequest decode = Decode(0);
  Add(0, Mask(false, {unlikely}), &decode);
  EXPECT_EQ(Run(decode).tokens(0).token_id(), unlikely);
  Free(0);
}

// Every rank has the token that rank 0 has sampled: the next token is the token that follows in a prompt.
TEST_P(MasksTest, TheSampledTokenIsEveryRanksInput) {
  const int32_t unlikely = (Likeliest(1)[0] + 9) % vocab_size();
  v1::StepRequest step = Begin(0, GreedySampling());
  Add(0, Mask(false, {unlikely}), &step);
  Run(step);
  const int32_t next = Run(Decode(0)).tokens(0).token_id();
  Free(0);
  v1::StepRequest whole = Begin(0, GreedySampling());
  whole.mutable_new_sequences(0)->add_token_ids(unlikely);
  whole.mutable_sequences(0)->set_num_tokens(static_cast<int32_t>(prompt_.size()) + 1);
  EXPECT_EQ(Run(whole).tokens(0).token_id(), next);
  Free(0);
}

TEST_P(MasksTest, RowsWithoutAMaskAreLeftAlone) {
  const std::vector<int32_t> likeliest = Likeliest(2);
  v1::StepRequest step = Begin(0, GreedySampling());
  const v1::StepRequest other = Begin(1, GreedySampling());
  step.mutable_new_sequences()->MergeFrom(other.new_sequences());
  step.mutable_sequences()->MergeFrom(other.sequences());
  --step_id_;
  Add(1, Mask(true, {likeliest[0]}), &step);
  const v1::StepReply reply = Run(step);
  ASSERT_EQ(reply.tokens_size(), 2);
  EXPECT_EQ(reply.tokens(0).token_id(), likeliest[0]);
  EXPECT_EQ(reply.tokens(1).token_id(), likeliest[1]);
  Free(0);
  Free(1);
}

TEST_P(MasksTest, AllowedIdsAndMaskHoldTogether) {
  v1::StepSampling sampling = GreedySampling();
  for (const int32_t id : {3, 4, 5}) sampling.add_allowed_token_ids(id);
  v1::StepRequest step = Begin(0, sampling);
  Add(0, Mask(false, {4, 6}), &step);
  EXPECT_EQ(Run(step).tokens(0).token_id(), 4);
  v1::StepRequest none = Decode(0);
  Add(0, Mask(false, {6}), &none);
  const v1::StepReply reply = Run(none);
  ASSERT_EQ(reply.slot_errors_size(), 1);
  EXPECT_EQ(reply.slot_errors(0).code(), static_cast<int32_t>(absl::StatusCode::kOutOfRange));
  Free(0);
}

TEST_P(MasksTest, EachTokenOfADraftHasAMask) {
  const int32_t first = Run(Begin(0, GreedySampling())).tokens(0).token_id();
  v1::StepRequest step = Decode(0);
  v1::ScheduledSequence* const scheduled = step.mutable_sequences(0);
  for (const int32_t id : {first, 20, 30}) scheduled->add_input_token_ids(id);
  scheduled->set_start_position(static_cast<int32_t>(prompt_.size()));
  scheduled->set_num_tokens(3);
  scheduled->set_num_draft_tokens(2);
  Add(0, Mask(false, {20}) + Mask(false, {31}) + Mask(false, {40}), &step);
  const v1::StepReply reply = Run(step);
  ASSERT_EQ(reply.tokens_size(), 2) << "the second guess was wrong";
  EXPECT_EQ(reply.tokens(0).token_id(), 20);
  EXPECT_EQ(reply.tokens(1).token_id(), 31);
  Free(0);
}

TEST_P(MasksTest, MasksMayComeAfterTheStep) {
  TestMasks source;
  group_->runner(0).SetMaskSource(&source);
  v1::StepRequest step = Begin(0, GreedySampling());
  Add(0, Mask(false, {7}), &step);
  const v1::StepMasks masks = std::move(*step.mutable_masks());
  step.clear_masks();
  std::thread later([&] { source.Set(masks); });
  EXPECT_EQ(Run(step).tokens(0).token_id(), 7);
  later.join();
  Free(0);
}

TEST_P(MasksTest, MasksOfAWrongShapeFailTheStep) {
  if (GetParam() > 1) GTEST_SKIP() << "the other ranks would wait for rank 0";
  for (const std::string& mask : {std::string("\1\2\3"), Mask(true, {}) + Mask(true, {})}) {
    v1::StepRequest step = Begin(0, GreedySampling());
    Add(0, mask, &step);
    EXPECT_TRUE(absl::IsInvalidArgument(group_->runner(0).Execute(step).status()));
    ASSERT_TRUE(group_->runner(0).BeginEpoch().ok());
  }
}

}  // namespace
}  // namespace somnus
