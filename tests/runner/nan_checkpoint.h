#pragma once
// A checkpoint in which one row of a tensor is not a number. In the embeddings, this makes NaN of all logits
// of exactly the sequences that have the token. In the head, it makes NaN of that token's logit in every
// sequence. Weights must be stored as f32.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace somnus {

class NanCheckpoint : public Checkpoint {
 public:
  // `base` must outlive the NanCheckpoint.
  NanCheckpoint(const Checkpoint& base, int64_t token, std::string tensor = "model.embed_tokens.weight")
      : base_(base), token_(token), tensor_(std::move(tensor)) {}

  const ModelConfig& config() const override { return base_.config(); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override { return base_.ReadTokenizer(); }
  const TensorInfo* Find(absl::string_view name) const override { return base_.Find(name); }
  std::vector<const TensorInfo*> Tensors() const override { return base_.Tensors(); }
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override {
    absl::Status status = base_.ReadRows(tensor, row_begin, row_end, col_begin, col_end, out);
    if (tensor.name == tensor_ && token_ >= row_begin && token_ < row_end) {
      const int64_t cols = col_end - col_begin;
      std::fill_n(out + (token_ - row_begin) * cols, cols, std::numeric_limits<float>::quiet_NaN());
    }
    return status;
  }
  absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out) const override {
    return ReadRows(tensor, row_begin, row_end, col_begin, col_end, static_cast<float*>(out));
  }

 private:
  const Checkpoint& base_;
  const int64_t token_;
  const std::string tensor_;
};

}  // namespace somnus
