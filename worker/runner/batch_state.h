#pragma once
// A rank's memory of the running sequences between steps, a slot for each sequence: tokens, block table,
// sampling. Only step messages and sampled tokens change the batch state, so that all ranks hold the same,
// but for the last token, which in a pipeline the last stage alone has until a message names the token.
//
// Every number from the wire is checked here before anything uses it as an index: InvalidArgument names slot
// and reason. A fault in a sequence (tokens, sampling) is an error of the slot: the slot is in use, but
// nothing is computed for the sequence. Any other fault is an error of the step. A slot may be scheduled
// after the sequence has stopped (the coordinator learns so a step later): the work is done as usual and
// nobody reads the result. A token that was sampled but has not come back from the device yet is
// kUnknownToken.
//
// The coordinator may name the tokens that a sequence computes, in the place of sampled tokens, and let a
// slot go on as a copy of a second slot (a branch, of beam search). In a pipeline the coordinator names every
// sampled token, which the last stage alone has. Both need all tokens of the sequence to
// be known here. The last named tokens may be a draft: guesses, at each of which a token is sampled too. Only
// the coordinator knows which guesses were right: the slot's next step names the input.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "proto/limits.h"
#include "proto/worker.pb.h"
#include "worker/runner/slot_sampling.h"

namespace somnus {

struct BatchLimits {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  int32_t vocab_size = 0;
  int32_t num_blocks = 0;     // of the KV cache, with memory, the null block included; 0: no cache
  int32_t max_proposals = 0;  // of a draft model for a sequence; 0: no draft model
  // How many tokens a query attends at most in any layer, with its own; 0: all. Block ids of a sequence may
  // be the null block where all tokens of the block lie before.
  int64_t attention_reach = 0;
  int32_t max_adapters = 0;  // slots of adapters

  // A block more than a full sequence needs: before the coordinator knows that a sequence has ended, a step
  // may be scheduled past the end.
  int32_t max_blocks_per_seq() const { return (max_model_len + block_size - 1) / block_size + 1; }
};

inline constexpr int32_t kUnknownToken = -1;

struct Slot {
  bool in_use = false;
  int64_t generation = 0;       // counts the sequences that the slot has held
  std::vector<int32_t> tokens;  // prompt, then outputs; the last may not be in the cache yet
  int32_t num_prompt_tokens = 0;
  int32_t num_computed = 0;  // tokens with K and V in the cache, at the latest after the step
  std::vector<int32_t> block_ids;
  int32_t num_drafts = 0;                        // of the last tokens: guesses of a draft
  std::shared_ptr<const SlotSampling> sampling;  // null while the slot is not in use, or has an error
  uint64_t seed = 0;
  v1::StepPooling pooling = v1::STEP_POOLING_NONE;
  int32_t adapter_slot = 0;  // as of NewSequence
  absl::Status error;        // why nothing is computed for the sequence

  bool pools() const { return pooling != v1::STEP_POOLING_NONE; }
  int32_t num_outputs() const { return static_cast<int32_t>(tokens.size()) - num_prompt_tokens; }
};

// A sequence's part of the current step: tokens [start, start + num_tokens).
struct ScheduledSlot {
  int32_t slot = 0;
  int32_t start = 0;
  int32_t num_tokens = 0;
  bool samples = false;       // the sequence's known tokens end within the step, and it does not pool
  int32_t num_drafts = 0;     // guesses at the end of the tokens; sampled at each, and before
  int32_t num_proposals = 0;  // tokens to guess behind the sampled token
};

// A slot that samples from the logits of the source, whose tokens the slot has taken over in the current
// step.
struct ForkedSlot {
  int32_t slot = 0;
  int32_t source = 0;
};

class BatchState {
 public:
  explicit BatchState(const BatchLimits& limits);

  void SetNumBlocks(int32_t num_blocks) { limits_.num_blocks = num_blocks; }
  const BatchLimits& limits() const { return limits_; }
  // [max_adapters]: whether the slot of that number, less 1, has an adapter. New sequences name no other.
  void SetAdapters(std::vector<bool> loaded) { adapters_ = std::move(loaded); }
  // Whether a step may name the null block where a query sees the block; false at first. For profiles, whose
  // results nobody reads.
  void AllowNullBlock(bool allowed) { null_block_allowed_ = allowed; }
  // FailedPrecondition unless every block of a sequence is among the first num_blocks. Blocks that hold
  // guesses of a draft alone do not count, nor do blocks that no later query attends, since the coordinator
  // may have given such blocks back.
  absl::Status CheckUnused(int32_t num_blocks) const;

  // The parts of a StepRequest, in the order of their effects: to be called for every step, all parts. After
  // an error the state is undefined but safe.
  absl::Status Branch(const v1::StepRequest& request);
  absl::Status Free(const v1::StepRequest& request);
  absl::Status CheckCopies(const v1::StepRequest& request) const;
  absl::Status Add(const v1::StepRequest& request);
  absl::Status Schedule(const v1::StepRequest& request);
  absl::Status Fork(const v1::StepRequest& request);

  // The current step, in the order of the message.
  const std::vector<ScheduledSlot>& scheduled() const { return scheduled_; }
  int32_t num_scheduled_tokens() const { return num_scheduled_tokens_; }
  const std::vector<ForkedSlot>& forked() const { return forked_; }
  // Slots with an error that the current step's message schedules, or forks.
  const std::vector<int32_t>& refused_slots() const { return refused_slots_; }
  const Slot& slot(int32_t index) const { return slots_[index]; }
  bool empty() const;  // no slot is in use

  // The entries that the current step's message added to block tables, in order.
  const std::vector<BlockTableEdit>& block_edits() const { return block_edits_; }
  // Slots that got new tokens by the current step's message: slots of new sequences, forks and branches, and
  // slots with penalties whose tokens were replaced.
  const std::vector<int32_t>& added_slots() const { return added_slots_; }

  // Adds the token that a slot sampled, or kUnknownToken: the input of the next decode. Returns the index.
  int32_t AppendToken(int32_t slot, int32_t token);
  // Sets a token that was unknown. Does nothing when the slot has a newer sequence by now.
  void SetToken(int32_t slot, int64_t generation, int32_t index, int32_t token);
  // Frees every slot and forgets the step.
  void Clear();

 private:
  // The records of one message. A record's error is the error of every sequence that names the record.
  using StepSamplings = std::vector<absl::StatusOr<std::shared_ptr<const SlotSampling>>>;

  absl::Status CheckSlot(int32_t slot) const;
  // The index of the first block that the slot's next query attends.
  size_t FirstSeenBlock(const Slot& slot) const;
  absl::Status AddSequence(const v1::NewSequence& sequence, const StepSamplings& samplings);
  absl::Status ReadSequence(const v1::NewSequence& sequence, const StepSamplings& samplings,
                            Slot* slot) const;
  absl::Status BranchSlot(const v1::SequenceFork& branch, const Slot& source);
  absl::Status CheckBranchesHaveInput(const v1::StepRequest& request) const;
  absl::Status ScheduleSequence(const v1::ScheduledSequence& sequence);
  // Puts the tokens that a message names into the slot. A token that cannot be is an error of the slot.
  // Behind a draft the block table is cut to the blocks of the tokens before.
  absl::Status ReplaceTokens(const v1::ScheduledSequence& sequence);
  absl::Status CheckDraft(const v1::ScheduledSequence& sequence);
  absl::Status CheckAdapter(const v1::NewSequence& sequence) const;
  absl::Status CheckProposals(const v1::ScheduledSequence& sequence, bool samples) const;
  absl::Status ForkSequence(const v1::SequenceFork& fork);
  // Takes a slot for a sequence that begins.
  absl::StatusOr<Slot*> TakeSlot(int32_t slot);
  absl::Status AppendBlocks(int32_t slot, const google::protobuf::RepeatedField<int32_t>& block_ids);

  BatchLimits limits_;
  std::vector<Slot> slots_;
  std::vector<bool> adapters_;
  std::vector<ScheduledSlot> scheduled_;
  std::vector<ForkedSlot> forked_;
  std::vector<bool> slot_scheduled_;
  std::vector<BlockTableEdit> block_edits_;
  std::vector<int32_t> added_slots_;
  std::vector<int32_t> refused_slots_;
  int32_t num_scheduled_tokens_ = 0;
  int32_t num_draft_tokens_ = 0;  // of the current step
  bool null_block_allowed_ = false;
};

}  // namespace somnus
