// A model of which only config.json exists: tensors are random. For measurements at any size.
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/tokenizer/hf_tokenizer.h"

namespace somnus {
namespace {

// A number of [-1, 1) that depends on the position alone (splitmix64's finalizer).
float Uniform(uint64_t position) {
  uint64_t z = position * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) / static_cast<float>(1 << 23) - 1;
}

class DummyCheckpoint final : public MappedCheckpoint {
 public:
  DummyCheckpoint(ModelConfig config, TensorTable tensors, std::string directory)
      : MappedCheckpoint(std::move(config), std::move(tensors)), directory_(std::move(directory)) {}

  bool is_dummy() const override { return true; }
  absl::Status FindTokenizer() const override { return FindHfTokenizer(directory_); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override { return ReadHfTokenizer(directory_); }

  // Norms are one, biases are zero, and matrices keep the magnitude of their input.
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override {
    const int64_t cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    if (row_begin < 0 || row_end > tensor.shape[0] || col_begin < 0 || col_end > cols) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, ": rows or columns out of range"));
    }
    const bool vector = tensor.shape.size() == 1;
    const float constant = absl::EndsWith(tensor.name, ".bias") ? 0.0f : 1.0f;
    const float scale = std::sqrt(3.0f / static_cast<float>(cols));
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t col = col_begin; col < col_end; ++col)
        *out++ = vector ? constant : scale * Uniform(static_cast<uint64_t>(row * cols + col));
    }
    return absl::OkStatus();
  }
  absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t, int64_t, int64_t, int64_t,
                              void*) const override {
    return absl::UnimplementedError(absl::StrCat("tensor ", tensor.name, ": a dummy stores nothing"));
  }

 private:
  const std::string directory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDummyCheckpoint(const std::string& directory) {
  ASSIGN_OR_RETURN(ModelConfig config, ReadHfConfig(directory));
  config.name = ResolvedName(directory);
  TensorTable tensors;
  RETURN_IF_ERROR(ForEachTensor(config, [&](const std::string& name, const std::vector<int64_t>& shape) {
    TensorInfo tensor{};
    tensor.name = name;
    tensor.type = config.stored_type;
    tensor.shape = shape;
    tensor.file = "config.json";
    return tensors.Add(std::move(tensor));
  }));
  return std::unique_ptr<Checkpoint>(
      std::make_unique<DummyCheckpoint>(std::move(config), std::move(tensors), directory));
}

}  // namespace somnus
