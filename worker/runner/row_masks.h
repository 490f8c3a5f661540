#pragma once
// The masks of a step (v1::StepMasks) by row of the sampler. A value; not thread safe.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/step.pb.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

class RowMasks {
 public:
  // Every row may sample every token.
  void Clear() { starts_.clear(); }
  // Takes the masks for `rows`, in which rows of the same slot follow each other. InvalidArgument names a
  // slot that has no row, or a mask that is not of the vocabulary's size.
  absl::Status Set(const v1::StepMasks& masks, absl::Span<const LogitRow> rows, int32_t vocab_size);

  bool has(size_t row) const { return row < starts_.size() && starts_[row] >= 0; }
  // For a row with a mask: removes from `mask`, (vocab_size + 31) / 32 words, the tokens that the row's mask
  // lacks.
  void Intersect(size_t row, absl::Span<uint32_t> mask) const;

 private:
  std::vector<uint32_t> words_;
  std::vector<int64_t> starts_;  // by row: where the row's mask begins in words_; -1: the row has no mask
};

}  // namespace somnus
