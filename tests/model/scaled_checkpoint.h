#pragma once
// A checkpoint with additional tensors that are not on disk, each with a number or a few: the scales of an
// fp8 KV cache.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

class ScaledCheckpoint : public Checkpoint {
 public:
  explicit ScaledCheckpoint(std::unique_ptr<Checkpoint> base) : base_(std::move(base)) {}

  void Add(const std::string& name, std::vector<int64_t> shape, float value) {
    TensorInfo& tensor = added_[name];
    tensor = {};
    tensor.name = name;
    tensor.type = StorageType::kF32;
    tensor.shape = std::move(shape);
    tensor.file = "scales.safetensors";
    values_[name] = value;
  }
  // k_scale and v_scale of every layer of a Llama.
  void AddAll(float k, float v) {
    for (int32_t i = 0; i < config().num_layers; ++i) {
      Add(absl::StrCat("model.layers.", i, ".self_attn.k_scale"), {}, k);
      Add(absl::StrCat("model.layers.", i, ".self_attn.v_scale"), {1}, v);
    }
  }

  const ModelConfig& config() const override { return base_->config(); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override { return base_->ReadTokenizer(); }
  const TensorInfo* Find(absl::string_view name) const override {
    const auto found = added_.find(std::string(name));
    return found != added_.end() ? &found->second : base_->Find(name);
  }
  std::vector<const TensorInfo*> Tensors() const override { return base_->Tensors(); }
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override {
    const auto found = values_.find(tensor.name);
    if (found == values_.end()) return base_->ReadRows(tensor, row_begin, row_end, col_begin, col_end, out);
    // As in real checkpoints: rows of a tensor with at least one dimension.
    if (tensor.shape.empty()) return absl::InvalidArgumentError("no rows");
    std::fill_n(out, (row_end - row_begin) * (col_end - col_begin), found->second);
    return absl::OkStatus();
  }
  absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out) const override {
    return base_->ReadStoredRows(tensor, row_begin, row_end, col_begin, col_end, out);
  }

 private:
  const std::unique_ptr<Checkpoint> base_;
  std::map<std::string, TensorInfo> added_;
  std::map<std::string, float> values_;
};

}  // namespace somnus
