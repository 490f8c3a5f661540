#pragma once
// One sequence that is swapped out to the host tier and comes back elsewhere in the cache, while a second
// sequence overwrites the first sequence's blocks: for tests of a step's swaps with a real cache.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/clock.h"
#include "tests/runner/rank_group.h"
#include "worker/kv_host_tier.h"

namespace somnus {

class SwappedSequence {
 public:
  // Prompts have at most two blocks of 16 tokens. `guess_period`: a draft model guesses behind each token, or
  // behind each token that makes the number of tokens divisible by guess_period, and behind the next token;
  // 0: never.
  SwappedSequence(RankGroup* group, std::vector<int32_t> prompt, size_t guess_period = 0)
      : group_(*group), tokens_(std::move(prompt)), guess_period_(guess_period) {
    num_prompt_ = static_cast<int32_t>(tokens_.size());
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      tiers_.push_back(std::make_unique<KvHostTier>(
          KvHostTierOptions{.block_bytes = group_.runner(rank).kv_block_bytes(), .num_blocks = 8},
          &group_.device(rank), &group_.driver(rank), &group_.runner(rank)));
    }
  }

  // Returns the prompt and `count` tokens; before every `period`-th token the sequence is swapped out and in.
  // 0: never.
  std::vector<int32_t> Generate(int count, int period) {
    Begin(0);
    for (int i = 0; i < count && !testing::Test::HasFatalFailure(); ++i) {
      if (i > 0 && period > 0 && i % period == 0) SwapOutAndIn();
      Sample();
    }
    step_.add_freed_slots(0);
    Execute();
    return tokens_;
  }
  // The tokens that the draft model has expected behind the generated tokens.
  const std::vector<int32_t>& guesses() const { return guesses_; }

 private:
  // The next step gets the sequence anew.
  void Begin(int32_t num_computed) {
    num_computed_ = num_computed;
    *step_.add_samplings() = GreedySampling();
    v1::NewSequence* sequence = step_.add_new_sequences();
    sequence->mutable_token_ids()->Add(tokens_.begin(), tokens_.end());
    sequence->set_num_prompt_tokens(num_prompt_);
    sequence->set_num_computed_tokens(num_computed);
    for (int32_t i = 0; i < kBlocks; ++i) sequence->add_block_ids(first_block_ + i);
  }

  void Sample() {
    v1::ScheduledSequence* scheduled = step_.add_sequences();
    const auto size = static_cast<int32_t>(tokens_.size());
    scheduled->set_num_tokens(size - num_computed_);
    num_computed_ = size;
    const bool guesses = guess_period_ > 0 && tokens_.size() % guess_period_ == 0;
    scheduled->set_num_proposals(guesses ? 1 : 0);
    const v1::StepReply reply = Execute();
    ASSERT_EQ(reply.tokens_size(), 1);
    tokens_.push_back(reply.tokens(0).token_id());
    if (!guesses) return;
    ASSERT_EQ(reply.drafts_size(), 1);
    ASSERT_EQ(reply.drafts(0).token_ids_size(), 1);
    guesses_.push_back(reply.drafts(0).token_ids(0));
  }

  void SwapOutAndIn() {
    const int32_t used = (num_computed_ + 15) / 16, old_block = first_block_;
    // The step that swaps out frees the blocks, and a second sequence writes there at once, or a step later.
    const bool is_later = ++num_swaps_ % 2 == 0;
    absl::flat_hash_set<int32_t> written;
    for (int32_t i = 0; i < kBlocks && !is_later; ++i) written.insert(old_block + i);
    for (auto& tier : tiers_) ASSERT_EQ(SwapOut(tier.get(), Swaps(used), written), absl::OkStatus());
    if (is_later) {
      Execute();
      for (int rank = 0; rank < group_.world_size(); ++rank) group_.device(rank).AwaitSwaps();
    }
    step_.add_freed_slots(0);
    *step_.add_samplings() = GreedySampling();
    v1::NewSequence* other = step_.add_new_sequences();
    other->set_slot(1);
    for (int32_t i = 0; i < 16 * kBlocks - 1; ++i) other->add_token_ids(1 + i % 40);
    other->set_num_prompt_tokens(16 * kBlocks - 1);
    for (int32_t i = 0; i < kBlocks; ++i) other->add_block_ids(old_block + i);
    v1::ScheduledSequence* scheduled = step_.add_sequences();
    scheduled->set_slot(1);
    scheduled->set_num_tokens(16 * kBlocks - 1);
    Execute();
    first_block_ = 1 + (first_block_ + kBlocks) % 20;
    for (auto& tier : tiers_) ASSERT_EQ(tier->SwapIn(Swaps(used)), absl::OkStatus());
    step_.add_freed_slots(1);
    Begin(num_computed_);
  }

  // As soon as the tier has the memory, which on a GPU is taken beside the steps.
  static absl::Status SwapOut(KvHostTier* tier, const std::vector<BlockSwap>& swaps,
                              const absl::flat_hash_set<int32_t>& written) {
    tier->BeginStep();
    absl::Status status = tier->SwapOut(swaps, written);
    while (absl::IsUnavailable(status)) {
      absl::SleepFor(absl::Milliseconds(1));
      status = tier->SwapOut(swaps, written);
    }
    return status;
  }

  std::vector<BlockSwap> Swaps(int32_t count) const {
    std::vector<BlockSwap> swaps;
    for (int32_t i = 0; i < count; ++i) swaps.push_back({first_block_ + i, 7 - i});
    return swaps;
  }

  v1::StepReply Execute() {
    auto reply = group_.Execute(step_);
    EXPECT_TRUE(reply.ok()) << reply.status();
    step_.Clear();
    return reply.ok() ? *std::move(reply) : v1::StepReply();
  }

  static constexpr int32_t kBlocks = 4;
  RankGroup& group_;
  std::vector<std::unique_ptr<KvHostTier>> tiers_;
  std::vector<int32_t> tokens_;
  const size_t guess_period_;
  std::vector<int32_t> guesses_;
  int32_t num_prompt_ = 0, num_computed_ = 0, first_block_ = 1, num_swaps_ = 0;
  v1::StepRequest step_;
};

}  // namespace somnus
