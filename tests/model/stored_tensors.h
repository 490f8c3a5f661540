#pragma once
// Checkpoints in memory for tests of loading: tensors of every storage type, and errors on demand.

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/mapped_checkpoint.h"

namespace somnus {

// Blocks of random bits that are all finite numbers: subnormal and huge numbers included, and numbers that
// become infinite when rounded to a smaller type. `elements` fill whole blocks.
inline std::vector<uint8_t> RandomStored(StorageType type, int64_t elements, uint32_t seed) {
  std::mt19937 random(seed);
  const BlockSize size = BlockSizeOf(type);
  std::vector<uint8_t> bytes(static_cast<size_t>(elements / size.elements * size.bytes));
  std::vector<float> values(static_cast<size_t>(size.elements));
  const auto all_finite = [&] {
    for (const float value : values) {
      if (!std::isfinite(value)) return false;
    }
    return true;
  };
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(size.bytes)) {
    do {
      for (int64_t i = 0; i < size.bytes; ++i) bytes[at + i] = static_cast<uint8_t>(random());
      DequantizeBlocks(type, bytes.data() + at, 1, values.data());
    } while (!all_finite());
  }
  return bytes;
}

// Tensors of shape [rows, cols] in separate memory: a tensor of each type, named by StorageTypeName, and
// "permuted Q8_0" and "permuted BF16" with heads of 8 rows.
class StoredTensors : public MappedCheckpoint {
 public:
  static std::unique_ptr<StoredTensors> Make(int64_t rows, int64_t cols) {
    std::vector<std::vector<uint8_t>> memory;
    TensorTable table;
    const auto add = [&](const std::string& name, StorageType type, int32_t permuted_head_dim) {
      memory.push_back(RandomStored(type, rows * cols, static_cast<uint32_t>(memory.size())));
      TensorInfo tensor{};
      tensor.name = name;
      tensor.type = type;
      tensor.shape = {rows, cols};
      tensor.data = memory.back().data();
      tensor.bytes = memory.back().size();
      tensor.file = "memory";
      tensor.heads = {permuted_head_dim, permuted_head_dim, /*interleaved=*/true, rows};
      return table.Add(std::move(tensor)).ok();
    };
    bool added = true;
    for (const StorageTypeInfo& info : kStorageTypeInfos) added = added && add(info.name, info.type, 0);
    for (const StorageType type : {StorageType::kQ8_0, StorageType::kBF16})
      added = added && add(absl::StrCat("permuted ", StorageTypeName(type)), type, 8);
    if (!added) return nullptr;
    return std::unique_ptr<StoredTensors>(new StoredTensors(std::move(memory), std::move(table)));
  }

  absl::StatusOr<TokenizerData> ReadTokenizer() const override {
    return absl::UnimplementedError("not needed");
  }

 private:
  StoredTensors(std::vector<std::vector<uint8_t>> memory, TensorTable table)
      : MappedCheckpoint(ModelConfig(), std::move(table)), memory_(std::move(memory)) {}

  const std::vector<std::vector<uint8_t>> memory_;
};

// The tensors of a checkpoint, all stored as F32, so that loading goes through f32.
class AsF32 : public Checkpoint {
 public:
  explicit AsF32(const Checkpoint& of) : of_(of) {
    for (const TensorInfo* tensor : of.Tensors()) {
      TensorInfo& copy = tensors_[tensor->name] = *tensor;
      copy.type = StorageType::kF32;
      copy.data = nullptr;
    }
  }
  const ModelConfig& config() const override { return of_.config(); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override { return of_.ReadTokenizer(); }
  const TensorInfo* Find(absl::string_view name) const override {
    const auto it = tensors_.find(std::string(name));
    return it == tensors_.end() ? nullptr : &it->second;
  }
  std::vector<const TensorInfo*> Tensors() const override {
    std::vector<const TensorInfo*> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(&tensor);
    return all;
  }
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override {
    return of_.ReadRows(*of_.Find(tensor.name), row_begin, row_end, col_begin, col_end, out);
  }
  absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out) const override {
    return ReadRows(tensor, row_begin, row_end, col_begin, col_end, static_cast<float*>(out));
  }

 private:
  const Checkpoint& of_;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace somnus
