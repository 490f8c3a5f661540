#pragma once
// Branches through the whole runner, as in beam search: slots that go on as copies of each other, with tokens
// that the test names.

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "tests/runner/rank_group.h"

namespace somnus {

// The tokens that a slot had computed in a step, and the sample.
struct BranchLeaf {
  std::vector<int32_t> tokens;
  v1::SampledToken sampled;
};

class BranchTree {
 public:
  static constexpr int32_t kWidth = 3;
  static constexpr int32_t kNeighbour = kWidth;  // a slot that decodes beside the branches
  static constexpr int32_t kBlockSize = 16;

  BranchTree(RankGroup* group, v1::StepSampling sampling, int32_t prompt_len, uint64_t seed)
      : group_(group), sampling_(std::move(sampling)), random_(seed) {
    for (int32_t i = 0; i < prompt_len; ++i) prompt_.push_back((i * 37 + 11) % 200);
  }

  // Slot 0 computes the prompt; then in each step every slot goes on as a copy of any slot, with any token.
  // Returns the slots after each step, kWidth at a time.
  absl::StatusOr<std::vector<BranchLeaf>> Run(int32_t num_steps) {
    v1::StepRequest first;
    *first.add_samplings() = sampling_;
    AddPrompt(0, &first);
    AddPrompt(kNeighbour, &first);
    ASSIGN_OR_RETURN(v1::StepReply reply, Execute(&first));
    std::vector<BranchLeaf> leaves, slots(1);
    slots[0].tokens = prompt_;
    for (int32_t i = 0; i < num_steps; ++i) {
      v1::StepRequest step;
      slots = Branch(slots, &step);
      AddDecode(kNeighbour, &step);
      ASSIGN_OR_RETURN(reply, Execute(&step));
      if (reply.tokens_size() != kWidth + 1) return absl::InternalError(reply.ShortDebugString());
      for (int32_t slot = 0; slot < kWidth; ++slot) {
        slots[slot].sampled = reply.tokens(slot);
        leaves.push_back(slots[slot]);
      }
      neighbour_.push_back(reply.tokens(kWidth).token_id());
    }
    v1::StepRequest last;
    for (int32_t slot = 0; slot <= kWidth; ++slot) last.add_freed_slots(slot);
    RETURN_IF_ERROR(Execute(&last).status());
    return leaves;
  }

  const std::vector<int32_t>& prompt() const { return prompt_; }
  // The neighbour's samples.
  const std::vector<int32_t>& neighbour() const { return neighbour_; }

 private:
  static constexpr int32_t kBank = 5;  // blocks of a sequence
  // A slot's blocks; a branch takes the blocks of the slot's second bank.
  int32_t Block(int32_t slot, int32_t index) const { return 1 + (2 * slot + bank_[slot]) * kBank + index; }
  static int32_t NumBlocks(size_t num_tokens) {
    return static_cast<int32_t>((num_tokens + kBlockSize - 1) / kBlockSize);
  }

  absl::StatusOr<v1::StepReply> Execute(v1::StepRequest* step) {
    step->set_step_id(++step_id_);
    return group_->Execute(*step);
  }

  void AddPrompt(int32_t slot, v1::StepRequest* step) {
    v1::NewSequence* fresh = step->add_new_sequences();
    fresh->set_slot(slot);
    fresh->mutable_token_ids()->Add(prompt_.begin(), prompt_.end());
    fresh->set_num_prompt_tokens(static_cast<int32_t>(prompt_.size()));
    for (int32_t i = 0; i < NumBlocks(prompt_.size()); ++i) fresh->add_block_ids(Block(slot, i));
    v1::ScheduledSequence* scheduled = step->add_sequences();
    scheduled->set_slot(slot);
    scheduled->set_num_tokens(static_cast<int32_t>(prompt_.size()));
    num_tokens_ = prompt_.size();
  }

  v1::ScheduledSequence* AddDecode(int32_t slot, v1::StepRequest* step) {
    v1::ScheduledSequence* scheduled = step->add_sequences();
    scheduled->set_slot(slot);
    scheduled->set_num_tokens(1);
    const bool is_full = num_tokens_ % kBlockSize == 0;
    if (is_full) scheduled->add_new_block_ids(Block(slot, NumBlocks(num_tokens_)));
    num_tokens_ += slot == kNeighbour ? 1 : 0;
    return scheduled;
  }

  std::vector<BranchLeaf> Branch(const std::vector<BranchLeaf>& before, v1::StepRequest* step) {
    std::vector<BranchLeaf> after;
    std::vector<int32_t> sources;
    for (int32_t slot = 0; slot < kWidth; ++slot) {
      sources.push_back(static_cast<int32_t>(random_() % before.size()));
      after.push_back({before[sources[slot]].tokens, {}});
      after[slot].tokens.push_back(static_cast<int32_t>(random_() % 200));
      if (sources[slot] != slot) AddBranch(slot, sources[slot], step);
    }
    for (int32_t slot = 0; slot < kWidth; ++slot) bank_[slot] ^= sources[slot] != slot ? 1 : 0;
    for (int32_t slot = 0; slot < kWidth; ++slot) {
      v1::ScheduledSequence* scheduled = AddDecode(slot, step);
      scheduled->add_input_token_ids(after[slot].tokens.back());
      scheduled->set_start_position(static_cast<int32_t>(num_tokens_));
    }
    return after;
  }

  void AddBranch(int32_t slot, int32_t source, v1::StepRequest* step) {
    v1::SequenceFork* branch = step->add_branches();
    branch->set_slot(slot);
    branch->set_source_slot(source);
    for (int32_t i = 0; i < NumBlocks(num_tokens_); ++i) {
      v1::BlockCopy* copy = step->add_copies();
      copy->set_src(Block(source, i));
      bank_[slot] ^= 1;
      copy->set_dst(Block(slot, i));
      branch->add_block_ids(Block(slot, i));
      bank_[slot] ^= 1;
    }
  }

  RankGroup* const group_;
  const v1::StepSampling sampling_;
  std::mt19937_64 random_;
  std::vector<int32_t> prompt_, neighbour_;
  int bank_[kWidth + 1] = {};
  size_t num_tokens_ = 0;  // that each slot has computed
  int64_t step_id_ = 0;
};

// The sample of a sequence of these tokens, computed whole, in blocks that no other sequence has.
inline absl::StatusOr<v1::SampledToken> SampleWhole(RankGroup& group, const v1::StepSampling& sampling,
                                                    const std::vector<int32_t>& tokens,
                                                    size_t num_prompt_tokens) {
  v1::StepRequest step;
  *step.add_samplings() = sampling;
  v1::NewSequence* fresh = step.add_new_sequences();
  fresh->mutable_token_ids()->Add(tokens.begin(), tokens.end());
  fresh->set_num_prompt_tokens(static_cast<int32_t>(num_prompt_tokens));
  for (int32_t block = 1; block <= 5; ++block) fresh->add_block_ids(block);
  step.add_sequences()->set_num_tokens(static_cast<int32_t>(tokens.size()));
  ASSIGN_OR_RETURN(const v1::StepReply reply, group.Execute(step));
  if (reply.tokens_size() != 1) return absl::InternalError(reply.ShortDebugString());
  v1::StepRequest last;
  last.add_freed_slots(0);
  RETURN_IF_ERROR(group.Execute(last).status());
  return reply.tokens(0);
}

}  // namespace somnus
