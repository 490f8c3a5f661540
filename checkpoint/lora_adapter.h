#pragma once
// Reads a LoRA adapter (arXiv 2106.09685) as PEFT saves adapters: a directory with adapter_config.json and
// adapter_model.safetensors. An adapter adds scale * B * A to matrices of a model's layers; scale is
// lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora (arXiv 2312.03732).
//
// Everything is checked against the model's configuration: each tensor is of a linear layer of the model, in
// the right shape, and A and B come in pairs. Errors name the key or the tensor: NotFound (a file is
// missing), InvalidArgument (damaged, contradictory, or of another model), Unimplemented (a variant of LoRA,
// or a module that is no linear layer of a block).
//
// Ownership: an adapter keeps the file mapped as long as the adapter exists. Thread safety: immutable after
// Open; all const methods are thread safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"

namespace somnus {

// The matrices of a layer that an adapter may change. A model whose MLP has no gate has no kGate.
enum class LoraTarget { kQuery, kKey, kValue, kOut, kGate, kUp, kDown };
inline constexpr int kNumLoraTargets = 7;

// The change of one matrix, in f32, row by row. Rows of B are in the order in which models compute
// (head_order.h), and contain the scale.
struct LoraMatrices {
  int32_t rank = 0;      // 0: the adapter does not change the matrix
  std::vector<float> a;  // [rank, in_features]
  std::vector<float> b;  // [out_features, rank]
};

class MappedFile;
class TensorTable;

class LoraAdapter {
 public:
  // The largest rank that any server can be asked to take.
  static constexpr int32_t kMaxRank = 64;

  // Reads headers only. `max_rank`: a larger rank is InvalidArgument, and the message names --max-lora-rank.
  static absl::StatusOr<std::unique_ptr<LoraAdapter>> Open(const std::string& directory,
                                                           const ModelConfig& config, int32_t max_rank);
  ~LoraAdapter();
  LoraAdapter(const LoraAdapter&) = delete;

  // The largest rank of any matrix; at least 1.
  int32_t rank() const { return rank_; }
  // DataLoss: the file was cut while in use.
  absl::StatusOr<LoraMatrices> Read(int32_t layer, LoraTarget target) const;
  // SHA-256 (64 hexadecimal digits) over both files: equal for equal files, regardless of path and times.
  // Reads the whole file of tensors. DataLoss as Read.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  // The change of one matrix, as stored. A matrix that files fuse with further ones has rows of the fused B.
  struct Pair {
    const TensorInfo* a = nullptr;  // null: no change
    const TensorInfo* b = nullptr;
    int64_t first_row = 0;  // of b
    int64_t num_rows = 0;
    double scale = 0;
    HeadOrder heads;  // of b's rows
  };
  class Reader;

  LoraAdapter();

  std::unique_ptr<TensorTable> tensors_;
  const MappedFile* file_ = nullptr;  // of the tensors, which own the file
  std::string config_;                // the text of adapter_config.json
  std::vector<Pair> pairs_;           // [num_layers][kNumLoraTargets]
  int32_t rank_ = 0;
};

}  // namespace somnus
