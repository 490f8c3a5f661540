#include <cmath>
#include <memory>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "worker/runner/logit_edits.h"

namespace somnus {
namespace {

Slot MakeSlot(std::vector<int32_t> tokens, int32_t num_prompt) {
  Slot slot;
  slot.tokens = std::move(tokens);
  slot.num_prompt_tokens = num_prompt;
  slot.sampling = std::make_shared<SlotSampling>();
  return slot;
}

int32_t NumTokens(const Slot& slot) { return static_cast<int32_t>(slot.tokens.size()); }

// The parameters of `slot`, to be changed.
SlotSampling* OwnSampling(Slot* slot) {
  auto own = std::make_shared<SlotSampling>(*slot->sampling);
  slot->sampling = own;
  return own.get();
}

// Every edit before temperature, as the sampler queues edits for one row.
std::vector<float> Adjusted(const Slot& slot, std::vector<float> logits) {
  const std::unique_ptr<Device> device = *Device::CreateCpu({.num_threads = 1});
  const int32_t vocab = static_cast<int32_t>(logits.size()), row = 0;
  const TensorView view = {logits.data(), DataType::kF32, 1, vocab, vocab};
  if (!slot.sampling->allowed_token_ids.empty()) {
    std::vector<uint32_t> mask;
    AppendAllowedMask(slot, vocab, &mask);
    KeepAllowed(*device, view, &row, mask.data(), 1);
  }
  std::vector<LogitEdit> edits;
  AppendEdits(slot, NumTokens(slot), row, &edits);
  EditLogits(*device, view, edits.data(), static_cast<int64_t>(edits.size()));

  std::vector<int32_t> outputs(vocab), slots(slot.num_outputs(), 0);
  std::vector<uint32_t> in_prompt((vocab + 31) / 32);
  const TokenCounts counts = {outputs.data(), in_prompt.data(), vocab};
  ClearTokenCounts(*device, counts, &row, 1);
  MarkPromptTokens(*device, counts, 0, slot.tokens.data(), slot.num_prompt_tokens);
  CountTokens(*device, counts, slots.data(), slot.tokens.data() + slot.num_prompt_tokens, slot.num_outputs());
  const PenaltyRow penalty = PenaltyOf(slot, 0);
  ApplyPenalties(*device, view, &penalty, counts);
  return logits;
}

TEST(AdjustLogitsTest, NothingAskedNothingChanged) {
  const std::vector<float> logits = {1, -2, 3};
  EXPECT_EQ(Adjusted(MakeSlot({0, 1}, 1), logits), logits);
  EXPECT_TRUE(IsPlainGreedy(MakeSlot({0, 1}, 1), 2));
}

TEST(AdjustLogitsTest, PenaltiesAsVllmDefinesThem) {
  Slot slot = MakeSlot({0, 1, 2, 2}, 1);  // prompt {0}, outputs {1, 2, 2}
  OwnSampling(&slot)->repetition_penalty = 2;
  OwnSampling(&slot)->frequency_penalty = 0.5f;
  OwnSampling(&slot)->presence_penalty = 0.25f;
  EXPECT_FALSE(IsPlainGreedy(slot, NumTokens(slot)));
  const std::vector<float> got = Adjusted(slot, {4, -3, 6, 5});
  EXPECT_FLOAT_EQ(got[0], 2);                     // prompt: repetition only
  EXPECT_FLOAT_EQ(got[1], -6 - 0.5f - 0.25f);     // negative logits are multiplied
  EXPECT_FLOAT_EQ(got[2], 3 - 2 * 0.5f - 0.25f);  // counted twice, present once
  EXPECT_FLOAT_EQ(got[3], 5);
}

TEST(AdjustLogitsTest, AllowedTokensOnly) {
  Slot slot = MakeSlot({0}, 1);
  OwnSampling(&slot)->allowed_token_ids = {2, 1, 2};
  const std::vector<float> got = Adjusted(slot, {9, 1, 2, 9});
  EXPECT_TRUE(std::isinf(got[0]) && std::isinf(got[3]));
  EXPECT_EQ(got[1], 1);
  EXPECT_EQ(got[2], 2);
}

TEST(AdjustLogitsTest, BadWordsLookAtOutputsOnly) {
  Slot slot = MakeSlot({1, 2, 3}, 2);  // outputs {3}
  OwnSampling(&slot)->bad_words = {{0}, {3, 1}, {2, 3, 2}};
  const std::vector<float> got = Adjusted(slot, {1, 1, 1, 1});
  EXPECT_TRUE(std::isinf(got[0]));  // a single token, always
  EXPECT_TRUE(std::isinf(got[1]));  // after 3
  EXPECT_EQ(got[2], 1);             // the first token is in the prompt
  EXPECT_EQ(got[3], 1);
}

TEST(AdjustLogitsTest, EditsOfOneTokenAreMerged) {
  Slot slot = MakeSlot({1}, 1);
  OwnSampling(&slot)->min_tokens = 3;
  OwnSampling(&slot)->suppress_token_ids = {2, 0, 2};
  OwnSampling(&slot)->bad_words = {{2}};
  OwnSampling(&slot)->logit_bias = {{2, 5.0f}, {3, 1.0f}};
  std::vector<LogitEdit> edits;
  AppendEdits(slot, NumTokens(slot), 7, &edits);
  ASSERT_EQ(edits.size(), 3u);
  for (const LogitEdit& edit : edits) EXPECT_EQ(edit.row, 7);
  EXPECT_EQ(edits[0].id, 0);
  EXPECT_EQ(edits[1].id, 2);
  EXPECT_EQ(edits[1].addend, -INFINITY);
  EXPECT_EQ(edits[2].id, 3);
  EXPECT_EQ(edits[2].addend, 1);
}

TEST(AdjustLogitsTest, OnlyLongBadWordsLookAtTokens) {
  Slot slot = MakeSlot({1}, 1);
  OwnSampling(&slot)->bad_words = {{2}};
  EXPECT_FALSE(LooksAtTokens(slot));
  OwnSampling(&slot)->bad_words = {{2}, {1, 2}};
  EXPECT_TRUE(LooksAtTokens(slot));
}

// "aab" of the tokens a = 0, b = 1, aa = 2, " a" = 3, "b!" = 4.
v1::BadText Aab() {
  v1::BadText text;
  text.set_num_bytes(3);
  const auto add = [&](int32_t token, int32_t from, int32_t to) {
    text.add_token_ids(token);
    text.add_from(from);
    text.add_to(to);
  };
  add(0, 0, 1);
  add(0, 1, 2);
  add(1, 2, 3);
  add(2, 0, 2);
  add(3, 0, 1);
  add(4, 2, 3);
  return text;
}

std::vector<int32_t> Forbidden(const v1::BadText& text, std::vector<int32_t> tokens, int32_t num_prompt) {
  Slot slot = MakeSlot(std::move(tokens), num_prompt);
  OwnSampling(&slot)->bad_texts = {*BadTextRule::Create(text)};
  std::vector<LogitEdit> edits;
  AppendEdits(slot, NumTokens(slot), 0, &edits);
  std::vector<int32_t> ids;
  for (const LogitEdit& edit : edits) ids.push_back(edit.id);
  return ids;
}

TEST(AdjustLogitsTest, ABadTextIsNeverCompletedHoweverItIsSpelled) {
  const std::vector<int32_t> none, both = {1, 4};
  EXPECT_EQ(Forbidden(Aab(), {9}, 1), none);
  EXPECT_EQ(Forbidden(Aab(), {9, 0}, 1), none);
  EXPECT_EQ(Forbidden(Aab(), {9, 0, 0}, 1), both);
  EXPECT_EQ(Forbidden(Aab(), {9, 2}, 1), both);
  EXPECT_EQ(Forbidden(Aab(), {9, 3, 0}, 1), both);
  EXPECT_EQ(Forbidden(Aab(), {9, 0, 0, 0, 0}, 1), both) << "the last two are its beginning";
  EXPECT_EQ(Forbidden(Aab(), {9, 0, 9, 0}, 1), none);
  EXPECT_EQ(Forbidden(Aab(), {9, 0, 2}, 1), both);
  EXPECT_EQ(Forbidden(Aab(), {0, 0}, 1), none) << "prompts do not count";
  EXPECT_EQ(Forbidden(Aab(), {0, kUnknownToken}, 1), none);
  v1::BadText lone;
  lone.set_num_bytes(5);
  lone.add_token_ids(7);
  lone.add_from(0);
  lone.add_to(5);
  EXPECT_EQ(Forbidden(lone, {9}, 1), std::vector<int32_t>{7});
}

TEST(AdjustLogitsTest, BadTextsThatLookAtTokens) {
  Slot slot = MakeSlot({1}, 1);
  OwnSampling(&slot)->bad_texts = {*BadTextRule::Create(Aab())};
  EXPECT_TRUE(LooksAtTokens(slot));
  EXPECT_FALSE(IsPlainGreedy(slot, NumTokens(slot)));
  for (const auto& [from, to] : {std::pair<int, int>{-1, 1}, {1, 1}, {2, 4}, {2, 1}}) {
    v1::BadText bad = Aab();
    bad.set_from(0, from);
    bad.set_to(0, to);
    EXPECT_FALSE(BadTextRule::Create(bad).ok()) << from << "-" << to;
  }
  v1::BadText short_list = Aab();
  short_list.add_token_ids(5);
  EXPECT_FALSE(BadTextRule::Create(short_list).ok());
}

TEST(AdjustLogitsTest, MinTokensHoldsBackTheStopTokens) {
  Slot slot = MakeSlot({1, 2}, 1);
  OwnSampling(&slot)->min_tokens = 2;
  OwnSampling(&slot)->suppress_token_ids = {0};
  OwnSampling(&slot)->logit_bias = {{0, 100.0f}, {1, -1.0f}};
  std::vector<float> got = Adjusted(slot, {1, 1, 1});
  EXPECT_EQ(got[0], -INFINITY);
  EXPECT_EQ(got[1], 0);
  slot.tokens.push_back(2);
  got = Adjusted(slot, {1, 1, 1});
  EXPECT_EQ(got[0], 101);
}

TEST(AdjustLogitsTest, GreedyAgainOnceMinTokensArePast) {
  Slot slot = MakeSlot({1, 2}, 1);
  OwnSampling(&slot)->min_tokens = 2;
  OwnSampling(&slot)->suppress_token_ids = {0};
  EXPECT_FALSE(IsPlainGreedy(slot, NumTokens(slot)));
  slot.tokens.push_back(2);
  EXPECT_TRUE(IsPlainGreedy(slot, NumTokens(slot)));
}

// At a draft's token the sampler ignores the tokens behind that token.
TEST(AdjustLogitsTest, OnlyTokensBeforeTheSampledOneCount) {
  Slot slot = MakeSlot({1, 2, 3, 0}, 1);  // outputs {2, 3, 0}, of which {3, 0} may be a draft
  OwnSampling(&slot)->min_tokens = 2;
  OwnSampling(&slot)->suppress_token_ids = {1};
  OwnSampling(&slot)->bad_words = {{3, 0}, {2, 2}};
  const auto forbidden = [&](int32_t num_tokens) {
    std::vector<LogitEdit> edits;
    AppendEdits(slot, num_tokens, 0, &edits);
    std::vector<int32_t> ids;
    for (const LogitEdit& edit : edits) ids.push_back(edit.id);
    return ids;
  };
  EXPECT_EQ(forbidden(2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(forbidden(3), std::vector<int32_t>{0});
  EXPECT_EQ(forbidden(4), std::vector<int32_t>());
  OwnSampling(&slot)->bad_words.clear();
  EXPECT_FALSE(IsPlainGreedy(slot, 2));
  EXPECT_TRUE(IsPlainGreedy(slot, 3));
}

}  // namespace
}  // namespace somnus
