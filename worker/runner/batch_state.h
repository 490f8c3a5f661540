#pragma once
// What a rank remembers of the running sequences between steps, one slot each: tokens, block table, sampling.
// Only step messages and sampled tokens change it, so that all ranks hold the same.
//
// Every number from the wire is checked here before anything uses it as an index: InvalidArgument names slot
// and reason. A fault in a sequence itself (its tokens, its sampling) is an error of its slot: the slot is in
// use, but nothing is computed for it. Any other fault is an error of the step. A slot may be scheduled after
// its sequence has stopped (the coordinator learns that one step later): its work is done as usual and nobody
// reads the result. A token that was sampled but has not come back from the device yet is kUnknownToken.
//
// The coordinator may name the tokens that a sequence computes, in the place of those that it sampled, and
// let a slot go on as a copy of another one (a branch, of beam search). Both need all tokens of the sequence
// to be known here. The last ones that it names may be a draft: guesses, at each of which a token is sampled
// too. What became of them is the coordinator's to know, which names the input of the slot's next step.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "proto/limits.h"
#include "proto/worker.pb.h"
#include "worker/runner/bad_text_rule.h"

namespace somnus {

struct BatchLimits {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  int32_t vocab_size = 0;
  int32_t num_blocks = 0;  // of the KV cache that have memory, the null block included; 0 until it is there
  int32_t max_proposals = 0;  // of a draft model for one sequence; 0: there is none

  // One more than a full sequence needs: a step may be scheduled past its end before the coordinator knows.
  int32_t max_blocks_per_seq() const { return (max_model_len + block_size - 1) / block_size + 1; }
};

// StepSampling, checked. Immutable: slots whose sequences share a record share it.
struct SlotSampling {
  float temperature = 0;
  float top_p = 1;
  int32_t top_k = 0;
  float min_p = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  int32_t min_tokens = 0;
  int32_t num_logprobs = -1;
  int32_t num_prompt_logprobs = -1;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> suppress_token_ids;
  std::vector<int32_t> allowed_token_ids;
  std::vector<std::vector<int32_t>> bad_words;  // none is empty
  std::vector<BadTextRule> bad_texts;

  bool has_penalties() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

inline constexpr int32_t kUnknownToken = -1;

struct Slot {
  bool in_use = false;
  int64_t generation = 0;       // counts the sequences that the slot has held
  std::vector<int32_t> tokens;  // prompt, then outputs; the last may not be in the cache yet
  int32_t num_prompt_tokens = 0;
  int32_t num_computed = 0;  // tokens whose K and V are (or will be, after the step) in the cache
  std::vector<int32_t> block_ids;
  int32_t num_drafts = 0;                        // of the last tokens: guesses of a draft
  std::shared_ptr<const SlotSampling> sampling;  // null while the slot is not in use, or has an error
  uint64_t seed = 0;
  absl::Status error;  // why nothing is computed for the sequence

  int32_t num_outputs() const { return static_cast<int32_t>(tokens.size()) - num_prompt_tokens; }
};

// One sequence's part of the current step: tokens [start, start + num_tokens).
struct ScheduledSlot {
  int32_t slot = 0;
  int32_t start = 0;
  int32_t num_tokens = 0;
  bool samples = false;    // its tokens end within the step
  int32_t num_drafts = 0;  // the last of these tokens that are guesses; it samples at them, and before them
  int32_t num_proposals = 0;  // that the draft model is to make behind what it samples
};

// A slot that samples from the logits of another one, whose tokens it has taken over in the current step.
struct ForkedSlot {
  int32_t slot = 0;
  int32_t source = 0;
};

class BatchState {
 public:
  explicit BatchState(const BatchLimits& limits);

  void SetNumBlocks(int32_t num_blocks) { limits_.num_blocks = num_blocks; }
  const BatchLimits& limits() const { return limits_; }
  // FailedPrecondition unless every block that a sequence has is one of the first num_blocks; those that hold
  // guesses of a draft alone do not count, since the coordinator may have given them back.
  absl::Status CheckUnused(int32_t num_blocks) const;

  // The parts of a StepRequest, in the order in which they apply: all of them, for every step. After an error
  // the state is undefined but safe.
  absl::Status Branch(const v1::StepRequest& request);
  absl::Status Free(const v1::StepRequest& request);
  absl::Status CheckCopies(const v1::StepRequest& request) const;
  absl::Status Add(const v1::StepRequest& request);
  absl::Status Schedule(const v1::StepRequest& request);
  absl::Status Fork(const v1::StepRequest& request);

  // The current step, in the order of its message.
  const std::vector<ScheduledSlot>& scheduled() const { return scheduled_; }
  int32_t num_scheduled_tokens() const { return num_scheduled_tokens_; }
  const std::vector<ForkedSlot>& forked() const { return forked_; }
  // Slots with an error that the current step's message schedules, or forks.
  const std::vector<int32_t>& refused_slots() const { return refused_slots_; }
  const Slot& slot(int32_t index) const { return slots_[index]; }
  bool empty() const;  // no slot is in use

  // What the current step's message added to block tables, in order.
  const std::vector<BlockTableEdit>& block_edits() const { return block_edits_; }
  // Slots whose tokens are others since the current step's message: those of new sequences, forks and
  // branches, and those with penalties whose tokens were replaced.
  const std::vector<int32_t>& added_slots() const { return added_slots_; }

  // Adds the token that a slot sampled, or kUnknownToken: the input of its next decode. Returns its index.
  int32_t AppendToken(int32_t slot, int32_t token);
  // Sets a token that was unknown. Does nothing when the slot has another sequence by now.
  void SetToken(int32_t slot, int64_t generation, int32_t index, int32_t token);
  // Frees every slot and forgets the step.
  void Clear();

 private:
  // The records of one message. A record's error is that of every sequence that names it.
  using StepSamplings = std::vector<absl::StatusOr<std::shared_ptr<const SlotSampling>>>;

  absl::Status CheckSlot(int32_t slot) const;
  absl::Status AddSequence(const v1::NewSequence& sequence, const StepSamplings& samplings);
  absl::Status ReadSequence(const v1::NewSequence& sequence, const StepSamplings& samplings,
                            Slot* slot) const;
  absl::Status BranchSlot(const v1::SequenceFork& branch, const Slot& source);
  absl::Status CheckBranchesHaveInput(const v1::StepRequest& request) const;
  absl::Status ScheduleSequence(const v1::ScheduledSequence& sequence);
  // Puts the tokens that a message names into the slot. A token that cannot be is an error of the slot.
  // Behind a draft the blocks are those again that hold the tokens before them.
  absl::Status ReplaceTokens(const v1::ScheduledSequence& sequence);
  absl::Status CheckDraft(const v1::ScheduledSequence& sequence);
  absl::Status CheckProposals(const v1::ScheduledSequence& sequence, bool samples) const;
  absl::Status ForkSequence(const v1::SequenceFork& fork);
  // Takes a slot for a sequence that begins.
  absl::StatusOr<Slot*> TakeSlot(int32_t slot);
  absl::Status AppendBlocks(int32_t slot, const google::protobuf::RepeatedField<int32_t>& block_ids);

  BatchLimits limits_;
  std::vector<Slot> slots_;
  std::vector<ScheduledSlot> scheduled_;
  std::vector<ForkedSlot> forked_;
  std::vector<bool> slot_scheduled_;
  std::vector<BlockTableEdit> block_edits_;
  std::vector<int32_t> added_slots_;
  std::vector<int32_t> refused_slots_;
  int32_t num_scheduled_tokens_ = 0;
  int32_t num_draft_tokens_ = 0;  // of the current step
};

// InvalidArgument when a field is out of range or names a token outside the vocabulary.
absl::StatusOr<std::shared_ptr<const SlotSampling>> ParseSampling(const v1::StepSampling& proto,
                                                                  int32_t vocab_size);

}  // namespace somnus
