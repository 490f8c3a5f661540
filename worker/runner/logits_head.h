#pragma once
// From the last layer's output to logits, for the rows that need logits. The head is vocabulary-parallel:
// each rank multiplies the rank's rows of the table, then either whole logits are gathered, or, when only the
// largest counts, a (value, id) per rank. Everything stays on the device.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "worker/model/carver.h"
#include "worker/model/decoder_model.h"
#include "worker/runner/staging.h"

namespace somnus {

// Rows of the step's tokens.
struct LogitRows {
  const int32_t* indices = nullptr;  // [count], on the device
  int64_t count = 0;
  bool all = false;  // the rows are all rows of the step, in order: a decode batch
};

class LogitsHead {
 public:
  // The most rows of a call for the vocabulary: bounds a copy of the logits to about 64 MiB on a host and 512
  // MiB on a GPU.
  static int64_t MaxRows(const Device& device, int64_t vocab_size, int64_t max_num_seqs);

  void Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards, DataType act,
             int64_t max_rows);
  void Bind(const ModelContext* context) { c_ = context; }

  int64_t max_rows() const { return max_rows_; }

  // f32 [rows.count, vocab], whole and the same on every rank; valid until the next call.
  // hidden: act [T, embedding_dim]; at most max_rows() rows.
  absl::StatusOr<TensorView> Logits(const TensorView& hidden, const LogitRows& rows);

  // tokens[i] (on the device) = the likeliest token of row i (the smallest id among equals), the same on
  // every rank.
  absl::Status ArgMaxTokens(const TensorView& hidden, const LogitRows& rows, int32_t* tokens);

  // tokens[i] = rank 0's tokens[i], on every rank; at most max_rows() tokens, on the device.
  absl::Status ShareTokens(int32_t* tokens, int64_t count, SideStage* side);

  // Measures the head's matrix product for that many rows (TuneLinear); returns how many choices were made.
  int64_t Tune(int64_t num_rows);

 private:
  // f32 [rows.count, this rank's vocabulary], rows max_vocab_rows apart.
  TensorView LocalLogits(const TensorView& hidden, const LogitRows& rows);
  absl::Status AllGather(const void* in, int64_t bytes, void* out);

  const ModelContext* c_ = nullptr;
  int64_t max_rows_ = 0;
  TensorView gathered_hidden_;         // act [R, embedding_dim]
  TensorView local_;                   // f32 [R, max_vocab_rows]
  float* ranks_logits_ = nullptr;      // [world][R, max_vocab_rows], when world > 1
  TensorView whole_;                   // f32 [R, vocab], when world > 1
  ScoredToken* best_ = nullptr;        // [R]
  ScoredToken* ranks_best_ = nullptr;  // [world][R]
};

}  // namespace somnus
