#pragma once
// From the last layer's output to logits, for the rows that need them. The head is vocabulary-parallel: each
// rank multiplies its rows of the table, then either whole logits are gathered, or, when only the largest
// counts, one (value, id) per rank.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"
#include "worker/model/carver.h"
#include "worker/model/decoder_model.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

class LogitsHead {
 public:
  // The most rows of one call for that vocabulary: bounds the logits' memory to about 64 MB a copy.
  static int64_t MaxRows(int64_t vocab_size, int64_t max_num_seqs);

  void Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards, DataType act,
             int64_t max_rows);
  void Bind(const ModelContext* context) { c_ = context; }

  int64_t max_rows() const { return max_rows_; }

  // f32 [rows.size(), vocab], whole and the same on every rank; valid until the next call.
  // hidden: act [T, embedding_dim]; at most max_rows() rows.
  absl::StatusOr<TensorView> Logits(const TensorView& hidden, absl::Span<const LogitRow> rows);

  // tokens[i] = the likeliest token of row i (the smallest id among equals), the same on every rank.
  absl::Status ArgMaxTokens(const TensorView& hidden, absl::Span<const LogitRow> rows, int32_t* tokens);

 private:
  // f32 [rows.size(), this rank's vocabulary], rows max_vocab_rows apart.
  TensorView LocalLogits(const TensorView& hidden, absl::Span<const LogitRow> rows);

  const ModelContext* c_ = nullptr;
  int64_t max_rows_ = 0;
  int32_t* rows_ = nullptr;            // [R]
  TensorView gathered_hidden_;         // act [R, embedding_dim]
  TensorView local_;                   // f32 [R, max_vocab_rows]
  float* ranks_logits_ = nullptr;      // [world][R, max_vocab_rows], when world > 1
  TensorView whole_;                   // f32 [R, vocab], when world > 1
  ScoredToken* best_ = nullptr;        // [R]
  ScoredToken* ranks_best_ = nullptr;  // [world][R]
};

}  // namespace somnus
