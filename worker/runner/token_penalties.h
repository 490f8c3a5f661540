#pragma once
// Penalties for tokens that a sequence has had already: how often each slot has had each token, counted on
// the device, and the penalties that the rows of a step get from the counts.
//
// A step goes Build (host), Upload of the inputs, QueueCounts, QueuePenalties per piece of rows, QueueFinish.
// Borrows the device. Used by the runner thread alone.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "worker/model/carver.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

class TokenPenalties {
 public:
  // The rows' penalties travel with `inputs`, which outlives this object.
  TokenPenalties(const BatchLimits& limits, MirroredBlock* inputs);

  // Takes the counts of a device with memory apart from the host. Counts are cleared slot by slot, when a
  // sequence needs counts.
  void Carve(Carver* carver, const Device& device);
  // Also after a wake-up; no slot is in use.
  absl::Status Bind(Device* device);

  // Records the penalties of `rows`, which stay unchanged until QueueFinish.
  void Build(absl::Span<const LogitRow> rows, const BatchState& state);
  // Counts the tokens of sequences with penalties that came with this step, without the tokens of drafts.
  absl::Status QueueCounts(const BatchState& state, SideStage* side);
  // Applies the penalties to the logits of the rows that Build has recorded, from row `first` on.
  absl::Status QueuePenalties(const TensorView& logits, int64_t first, const BatchState& state,
                              SideStage* side);
  // Counts the sampled tokens. tokens: [rows], on the device.
  void QueueFinish(const int32_t* tokens);

 private:
  absl::Status AllocateHostCounts();

  const BatchLimits limits_;
  Device* device_ = nullptr;
  MirroredBlock::Array<PenaltyRow> penalties_;  // [S + kMaxStepDraftTokens]; of drafts the first row alone
  MirroredBlock::Array<int32_t> count_slots_;   // the row's slot; -1 without penalties, or with a draft

  TokenCounts counts_;  // of every slot, on the device
  // The memory of counts_ where memory is shared: pages that no sequence with penalties touches cost nothing.
  std::unique_ptr<void, decltype(&std::free)> host_counts_{nullptr, &std::free};

  absl::Span<const LogitRow> rows_;  // of Build
  // For each row of a slot with penalties: the row's place among the rows of the slot, from 0.
  std::vector<int32_t> places_;
  bool any_ = false;  // a row has penalties
};

}  // namespace somnus
