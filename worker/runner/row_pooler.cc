#include "worker/runner/row_pooler.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "worker/runner/sampled_rows.h"

namespace somnus {
namespace {

// The rows of a part that count; num_rows is 0 where none does.
PooledRows RowsOf(const PoolingPart& part, const Slot& slot) {
  PooledRows rows = {part.first_row, 1, part.slot, /*continues=*/false, /*divisor=*/1};
  const int32_t end = part.start + part.num_rows;
  const bool is_last = end == slot.num_prompt_tokens;
  switch (slot.pooling) {
    case v1::STEP_POOLING_LAST:
      rows.first_row += part.num_rows - 1;
      if (!is_last) rows.num_rows = 0;
      break;
    case v1::STEP_POOLING_CLS:
      if (part.start != 0) rows.num_rows = 0;
      break;
    default:  // the mean: BatchState has checked the value
      rows.num_rows = part.num_rows;
      rows.continues = part.start != 0;
      if (is_last) rows.divisor = static_cast<float>(slot.num_prompt_tokens);
  }
  return rows;
}

}  // namespace

void PooledVectors::FillReply(v1::StepReply* reply) const {
  for (const int32_t slot : slots) {
    const float* const begin = vectors + slot * width;
    if (!std::all_of(begin, begin + width, [](float x) { return std::isfinite(x); })) {
      AddSlotError(slot, absl::InternalError("the model's hidden states are not finite numbers"), reply);
      continue;
    }
    v1::PooledState* const pooled = reply->add_pooled();
    pooled->set_slot(slot);
    pooled->mutable_values()->Add(begin, begin + width);
  }
}

RowPooler::RowPooler(int32_t max_num_seqs, int64_t width) : max_num_seqs_(max_num_seqs), width_(width) {
  vectors_ = results_.Take<float>(max_num_seqs * width);
}

absl::Status RowPooler::Bind(Device* device) {
  device_ = device;
  return results_.Bind(device);
}

absl::StatusOr<PooledVectors> RowPooler::Run(const TensorView& hidden, absl::Span<const PoolingPart> parts,
                                             const BatchState& state, SideStage* side) {
  PooledVectors completed;
  if (parts.empty()) return completed;
  results_.Turn();
  pools_.clear();
  for (const PoolingPart& part : parts) {
    const Slot& slot = state.slot(part.slot);
    if (const PooledRows rows = RowsOf(part, slot); rows.num_rows > 0) pools_.push_back(rows);
    if (part.start + part.num_rows == slot.num_prompt_tokens) completed.slots.push_back(part.slot);
  }
  const TensorView vectors = {vectors_.device(), DataType::kF32, max_num_seqs_, width_, width_};
  RETURN_IF_ERROR(side->ForEachPiece(
      pools_.data(), static_cast<int64_t>(pools_.size()),
      [&](int64_t, const PooledRows* pools, int64_t n) { PoolRows(*device_, hidden, pools, n, vectors); }));
  const int64_t row_bytes = width_ * static_cast<int64_t>(sizeof(float));
  for (const int32_t slot : completed.slots)
    results_.DownloadPart(vectors_.begin() + slot * row_bytes, row_bytes);
  completed.vectors = vectors_.host();
  completed.width = width_;
  return completed;
}

}  // namespace somnus
