#pragma once
// Runs sequences with drafts of which a random part is right, or which a draft model has proposed, for tests
// of the runner: steps mix with steps of other sequences, lookahead blocks differ each time, and some steps
// have no draft.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/runner/mini_engine.h"

namespace somnus {

class DraftedSequences {
 public:
  // `wanted`: the requests' results without drafts. Each request has a slot. max_proposals: of the draft
  // model; 0: drafts are made from `wanted`.
  DraftedSequences(RankGroup* group, std::vector<MiniRequest> requests, std::vector<MiniResult> wanted,
                   uint32_t seed, int32_t max_proposals = 0)
      : group_(*group),
        requests_(std::move(requests)),
        wanted_(std::move(wanted)),
        max_proposals_(max_proposals),
        random_(seed) {
    for (int32_t block = 1; block < 64; ++block) free_blocks_.push_back(block);
    sequences_.resize(requests_.size());
  }

  std::vector<MiniResult> Run() {
    for (int i = 0; i < 1000 && !testing::Test::HasFatalFailure(); ++i) {
      v1::StepRequest step;
      step.set_step_id(i + 1);
      for (size_t slot = 0; slot < sequences_.size(); ++slot) Schedule(slot, &step);
      if (step.sequences_size() == 0 && step.freed_slots_size() == 0 && HasEnded()) break;
      auto reply = group_.Execute(step);
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) break;
      for (size_t slot = 0; slot < sequences_.size(); ++slot) Take(slot, *reply);
    }
    std::vector<MiniResult> results;
    for (Drafted& sequence : sequences_) results.push_back(std::move(sequence.result));
    return results;
  }

  int num_drafted() const { return num_drafted_; }
  int num_accepted() const { return num_accepted_; }

 private:
  struct Drafted {
    MiniResult result;
    int32_t start = 0;       // of the step under way, and the number of tokens that were computed before
    int32_t num_tokens = 0;  // of the step under way; 0: not part of a step
    bool names_input = false;
    bool ended = false, freed = false;
    std::vector<int32_t> blocks;
    std::vector<int32_t> proposals;
  };

  bool HasEnded() const {
    return std::all_of(sequences_.begin(), sequences_.end(),
                       [](const Drafted& sequence) { return sequence.freed; });
  }
  int32_t Below(uint32_t bound) { return static_cast<int32_t>(random_() % bound); }

  void Schedule(size_t slot, v1::StepRequest* step) {
    Drafted& sequence = sequences_[slot];
    const MiniRequest& request = requests_[slot];
    sequence.num_tokens = 0;
    if (sequence.freed || Below(4) == 0) return;
    sequence.freed = sequence.ended;
    if (sequence.ended) return step->add_freed_slots(static_cast<int32_t>(slot));
    v1::ScheduledSequence* scheduled = step->add_sequences();
    scheduled->set_slot(static_cast<int32_t>(slot));
    if (sequence.result.tokens.empty()) {
      sequence.num_tokens = static_cast<int32_t>(request.prompt.size());
      v1::NewSequence* fresh = step->add_new_sequences();
      fresh->set_slot(static_cast<int32_t>(slot));
      fresh->mutable_token_ids()->Add(request.prompt.begin(), request.prompt.end());
      fresh->set_num_prompt_tokens(sequence.num_tokens);
      fresh->set_sampling_index(step->samplings_size());
      fresh->set_seed(request.seed);
      *step->add_samplings() = request.sampling;
      GrowTo(sequence.num_tokens, &sequence, fresh->mutable_block_ids());
    } else {
      AddDecode(request, wanted_[slot].tokens, &sequence, scheduled);
    }
    scheduled->set_num_tokens(sequence.num_tokens);
    if (max_proposals_ > 0) scheduled->set_num_proposals(Below(static_cast<uint32_t>(max_proposals_) + 1));
    sequence.proposals.clear();
  }

  void AddDecode(const MiniRequest& request, const std::vector<int32_t>& wanted, Drafted* sequence,
                 v1::ScheduledSequence* scheduled) {
    const auto num_outputs = static_cast<int32_t>(sequence->result.tokens.size());
    int32_t num_drafts = std::min(Below(6), request.max_tokens - num_outputs - 1);
    const auto num_proposed = static_cast<int32_t>(sequence->proposals.size());
    if (max_proposals_ > 0) num_drafts = std::min(num_drafts, num_proposed);
    sequence->num_tokens = 1 + num_drafts;
    num_drafted_ += num_drafts;
    if (num_drafts > 0 || sequence->names_input) {
      scheduled->set_start_position(sequence->start);
      scheduled->add_input_token_ids(sequence->result.tokens.back());
      for (int32_t i = 0; i < num_drafts; ++i) {
        const int32_t guess = Below(5) == 0 ? Below(40) : wanted[num_outputs + i];
        scheduled->add_input_token_ids(max_proposals_ > 0 ? sequence->proposals[i] : guess);
      }
      scheduled->set_num_draft_tokens(num_drafts);
    }
    sequence->names_input = num_drafts > 0;
    GrowTo(sequence->start + sequence->num_tokens, sequence, scheduled->mutable_new_block_ids());
  }

  void GrowTo(int32_t num_tokens, Drafted* sequence, google::protobuf::RepeatedField<int32_t>* added) {
    while (static_cast<int32_t>(sequence->blocks.size()) * 16 < num_tokens) {
      const auto block = free_blocks_.begin() + Below(static_cast<uint32_t>(free_blocks_.size()));
      sequence->blocks.push_back(*block);
      added->Add(*block);
      free_blocks_.erase(block);
    }
  }

  void Take(size_t slot, const v1::StepReply& reply) {
    Drafted& sequence = sequences_[slot];
    if (sequence.num_tokens == 0) return;
    const bool is_prompt = sequence.result.tokens.empty();
    int32_t count = 0;
    for (const v1::SampledToken& token : reply.tokens()) {
      if (token.slot() != static_cast<int32_t>(slot)) continue;
      ++count;
      sequence.result.tokens.push_back(token.token_id());
      if (token.has_logprobs()) sequence.result.logprobs.push_back(token.logprobs());
    }
    ASSERT_GE(count, 1);
    ASSERT_LE(count, is_prompt ? 1 : sequence.num_tokens);
    num_accepted_ += count - 1;
    for (const v1::DraftTokens& draft : reply.drafts()) {
      if (draft.slot() != static_cast<int32_t>(slot)) continue;
      EXPECT_TRUE(sequence.proposals.empty());
      EXPECT_LE(draft.token_ids_size(), max_proposals_);
      sequence.proposals.assign(draft.token_ids().begin(), draft.token_ids().end());
    }
    sequence.start += is_prompt ? sequence.num_tokens : count;
    const auto num_blocks = static_cast<size_t>((sequence.start + 15) / 16);
    for (; sequence.blocks.size() > num_blocks; sequence.blocks.pop_back())
      free_blocks_.push_back(sequence.blocks.back());
    sequence.ended = static_cast<int32_t>(sequence.result.tokens.size()) >= requests_[slot].max_tokens;
  }

  RankGroup& group_;
  const std::vector<MiniRequest> requests_;
  const std::vector<MiniResult> wanted_;
  const int32_t max_proposals_;
  std::mt19937 random_;
  std::vector<int32_t> free_blocks_;
  std::vector<Drafted> sequences_;
  int num_drafted_ = 0, num_accepted_ = 0;
};

}  // namespace somnus
