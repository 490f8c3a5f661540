#pragma once
// The draft model's part of a step: where guesses are asked for, the draft model computes the missing tokens
// of the sequence, and goes on from the tokens that the large model has sampled. Knows which tokens of which
// block, and of which slot, the draft model has computed.
//
// Owns the draft model. Borrowed, and must outlive this object: device, batch state, arrays, steps. All ranks
// call the same, so that all know the same. Used by the runner thread alone.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/worker.pb.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/block_copies.h"
#include "worker/runner/draft_blocks.h"
#include "worker/runner/draft_model.h"
#include "worker/runner/draft_progress.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"
#include "worker/runner/step_outcome.h"
#include "worker/runner/unsettled_steps.h"

namespace somnus {

class DraftRunner {
 public:
  DraftRunner(std::unique_ptr<DraftModel> model, Device* device, const BatchState* state,
              const StepArrays* arrays, UnsettledSteps* steps);

  DraftModel& model() { return *model_; }

  // As in RankModel. No block of a new cache has tokens.
  absl::Status AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks);
  // No block has tokens any more: a rank that is new knows nothing of the blocks.
  void ForgetBlocks() { blocks_.Reset(model_->cache().num_blocks()); }
  // No sequence has tokens any more.
  void ForgetSequences() { progress_.Clear(); }

  // Queues the copies of the step's message, which `calls` has as calls.
  absl::Status Copy(const v1::StepRequest& request, absl::Span<const BlockCopyCall> calls, SideStage* side);
  // Queues swaps with the draft model's part of `pool`, which begins at `own`.
  void Swap(SwapDirection direction, const KvHostPool& pool, void* own, absl::Span<const BlockSwap> swaps);

  // Guesses where the scheduled step asks for guesses, once the step's tokens are sampled, and adds the
  // guesses to the reply. Waits for the device where guesses are asked for.
  absl::Status Run(StepOutcome* outcome);

 private:
  // Take note of news in the step: blocks in tables, and sequences.
  void NoteBlockEdits();
  void NoteNewSequences();
  absl::StatusOr<MissingTokens> MissingBefore(const ProposingSlot& proposing);
  // Computes missing tokens before the tokens of `slots`, no more than a step may have. Slots that still miss
  // tokens are taken out.
  absl::Status CatchUp(std::vector<ProposingSlot>* slots);
  // The draft model has computed the first `end` tokens of the slot, and then the guesses.
  void NoteComputed(int32_t slot, int32_t end, absl::Span<const int32_t> guesses);
  std::vector<ProposingSlot> SlotsThatPropose(const SampledRows& sampled) const;

  const std::unique_ptr<DraftModel> model_;
  Device& device_;
  const BatchState& state_;
  const StepArrays& arrays_;
  UnsettledSteps& steps_;
  DraftProgress progress_;
  DraftBlocks blocks_;
};

}  // namespace somnus
