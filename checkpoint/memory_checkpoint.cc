#include "checkpoint/memory_checkpoint.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "checkpoint/canonical_tensors.h"
#include "checkpoint/family.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/storage_type.h"

namespace somnus {
namespace {

// A table of its own, because the tables of files are immutable.
class HeldTensors final : public MemoryCheckpoint {
 public:
  explicit HeldTensors(const ModelConfig& config) : reader_(config) {
    const absl::Status listed =
        ForEachTensor(config, [this](const std::string& name, const std::vector<int64_t>& shape) {
          auto tensor = std::make_unique<TensorInfo>();
          tensor->name = name;
          tensor->type = StorageType::kF32;
          tensor->shape = shape;
          tensor->data = nullptr;
          tensor->bytes = 0;
          tensor->file = "memory";
          by_name_[name] = tensor.get();
          tensors_.push_back(std::move(tensor));
          return absl::OkStatus();
        });
    SOMNUS_CHECK(listed.ok());
    ForEachUncommonTensor(config, TensorOrigin::kHuggingFace,
                          [this](const std::string& name, const HeadOrder& heads, float offset) {
                            const auto it = by_name_.find(name);
                            if (it == by_name_.end()) return;
                            it->second->heads = heads;
                            it->second->offset = offset;
                          });
  }

  const ModelConfig& config() const override { return reader_.config(); }
  absl::StatusOr<TokenizerData> ReadTokenizer() const override { return reader_.ReadTokenizer(); }
  const TensorInfo* Find(absl::string_view name) const override {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : it->second;
  }
  std::vector<const TensorInfo*> Tensors() const override {
    std::vector<const TensorInfo*> all;
    for (const auto& tensor : tensors_) all.push_back(tensor.get());
    return all;
  }
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override {
    RETURN_IF_ERROR(CheckHeld(tensor));
    return reader_.ReadRows(tensor, row_begin, row_end, col_begin, col_end, out);
  }
  absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out) const override {
    RETURN_IF_ERROR(CheckHeld(tensor));
    return reader_.ReadStoredRows(tensor, row_begin, row_end, col_begin, col_end, out);
  }

  void Hold(const TensorInfo& tensor, StorageType type, const uint8_t* data,
            const MappedFile* source) override {
    Release();
    const auto it = by_name_.find(tensor.name);
    SOMNUS_CHECK(it != by_name_.end() && it->second == &tensor);
    held_ = it->second;
    held_->type = type;
    held_->data = data;
    held_->source = source;
    held_->bytes = static_cast<uint64_t>(BlockSizeOf(type).bytes);
    for (const int64_t size : held_->shape) held_->bytes *= static_cast<uint64_t>(size);
  }
  void Release() override {
    if (held_ == nullptr) return;
    held_->data = nullptr;
    held_->source = nullptr;
    held_->bytes = 0;
    held_ = nullptr;
  }

 private:
  // Reads the bytes that a TensorInfo points to, without asking a table.
  class Reader : public MappedCheckpoint {
   public:
    explicit Reader(const ModelConfig& config) : MappedCheckpoint(config, TensorTable()) {}
    absl::StatusOr<TokenizerData> ReadTokenizer() const override {
      return absl::UnimplementedError("tensors in memory have no tokenizer");
    }
  };

  absl::Status CheckHeld(const TensorInfo& tensor) const {
    if (&tensor == held_) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("tensor ", tensor.name, " is not in memory"));
  }

  const Reader reader_;
  std::vector<std::unique_ptr<TensorInfo>> tensors_;  // in the order of the configuration
  absl::flat_hash_map<std::string, TensorInfo*> by_name_;
  TensorInfo* held_ = nullptr;
};

}  // namespace

std::unique_ptr<MemoryCheckpoint> MemoryCheckpoint::Create(const ModelConfig& config) {
  return std::make_unique<HeldTensors>(config);
}

}  // namespace somnus
