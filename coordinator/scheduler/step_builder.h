#pragma once
// A step in the making: which tokens of which sequences are in the step, and how much of the budgets is left.
//
// Schedule order is the caller's; the builder keeps the message, the entries that wait for the reply, and the
// budgets in agreement. Lives for the making of one step. Not thread safe.

#include <cstdint>
#include <vector>

#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/long_prompts.h"
#include "coordinator/scheduler/scheduler_options.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/step_ledger.h"
#include "coordinator/scheduler/step_messages.h"
#include "coordinator/scheduler/step_plan.h"

namespace somnus {

// A prompt's part of a step in the making. The length and the rank are those before the step.
struct PrefillEntry {
  SequencePtr sequence;
  int entry;  // the index of the prompt's entry in the step
  bool is_long;
  int64_t rank;
};

class StepBuilder {
 public:
  // Takes memory from the ledger for about `num_sequences` entries.
  StepBuilder(const SchedulerOptions& options, const LongPrompts& long_prompts, BlockManager* blocks,
              StepLedger* ledger, size_t num_sequences);
  StepBuilder(const StepBuilder&) = delete;

  // Adds an entry of `num_tokens` tokens, of which there must be as many left, to the step.
  void AddEntry(const SequencePtr& sequence, int64_t num_tokens, std::vector<int32_t> new_blocks = {});
  // Adds a chunk of a prompt, at most the threshold of long prompts; nothing where the step has no room.
  // Admission has taken blocks for all of the prompt; where the prompt gives blocks back on the way, the
  // chunk takes further blocks, and ends where no more are free.
  void AddPrefill(const SequencePtr& sequence);
  // Gives the rest of the budget to the prompts of the step, the shortest first.
  void SpendRest();
  // Whether the step has tokens of beams of the group that the sequence leads. Beams have taken each other's
  // places then, which cannot be taken back.
  bool HasBeamsOf(const Sequence& leader) const;
  // Takes back the entry of a sequence, if the step has such an entry; not of a beam.
  void Unschedule(const SequencePtr& sequence);

  // Whether the step's messages have room for a sequence that is sent whole, and for its first token.
  bool HasBytes(const Sequence& sequence) const;
  // Whether the reply has room for the pooled vector of a sequence that pools; the first one always has.
  bool HasReplyRoom(const Sequence& sequence) const;
  // Sends a sequence whole; HasBytes must have said yes. The workers then know its slot.
  void SendWhole(const Sequence& sequence, const std::vector<int32_t>& block_ids);

  bool Samples(const PrefillEntry& prefill) const { return step.entries[prefill.entry].samples; }

  StepPlan plan;
  InFlightStep step;
  int64_t budget;         // tokens left
  int64_t request_bytes;  // left for new sequences
  std::vector<PrefillEntry> prefills;
  // Running long prompts beyond max_long_partial_prefills, which get the tokens that nothing else takes.
  std::vector<SequencePtr> overtakers;

 private:
  bool NamesSampledToken(const Sequence& sequence) const;
  // Returns for how many of `num_tokens` further tokens of the sequence the step has room.
  int64_t Chunk(const Sequence& sequence, int64_t num_tokens) const;
  void Extend(int entry, int64_t num_tokens);
  // For how many further tokens the sequence has blocks.
  int64_t RoomInTable(const Sequence& sequence) const {
    return blocks_.Capacity(sequence.id) - sequence.num_computed;
  }

  const SchedulerOptions& options_;
  const LongPrompts& long_prompts_;
  BlockManager& blocks_;
  NewSequenceWriter writer_{&plan.request};
  int64_t reply_bytes_;      // left for prompt log-probabilities and pooled vectors
  bool has_pooled_ = false;  // the reply has a pooled vector
};

}  // namespace somnus
