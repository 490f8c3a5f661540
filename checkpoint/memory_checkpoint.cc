#include "checkpoint/memory_checkpoint.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "checkpoint/canonical_tensors.h"
#include "checkpoint/family.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/storage_type.h"
#include "checkpoint/tensor_part.h"
#include "checkpoint/whole_tensor.h"

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
          AddSent(name, {.shape = shape}).own = tensor.get();
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
    for (WholeTensor& whole : WholeTensors(config)) {
      const SentTensor sent = {.shape = whole.shape, .num_slices = whole.num_slices};
      AddSent(whole.name, sent).whole = std::move(whole);
    }
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

  const SentTensor* FindSent(absl::string_view name) const override {
    const auto it = sent_.find(FileName(*config().family, name));
    return it == sent_.end() ? nullptr : it->second.get();
  }

  std::vector<const TensorInfo*> Hold(const SentTensor& sent, int64_t slice, StorageType type,
                                      const uint8_t* data, const MappedFile* source) override {
    Release();
    const Sent& from = static_cast<const Sent&>(sent);  // FindSent returns nothing else
    TensorInfo bytes{"", type, sent.shape, data, static_cast<uint64_t>(BlockSizeOf(type).bytes), "memory"};
    for (const int64_t size : sent.shape) bytes.bytes *= static_cast<uint64_t>(size);
    bytes.bytes /= static_cast<uint64_t>(sent.num_slices);
    bytes.source = source;
    if (from.own != nullptr) {
      SetBytes(from.own, bytes);
    } else {
      bytes.name = from.whole.name;
      bytes.shape = {from.whole.rows, from.whole.cols};
      for (const WholeTensor::Part& part : from.whole.parts) {
        TensorInfo* const tensor = by_name_.at(PartName(part, slice));
        SetBytes(tensor, bytes);
        TensorPart place = part.place;
        place.whole = bytes;
        tensor->part = std::make_shared<const TensorPart>(std::move(place));
      }
    }
    return {held_.begin(), held_.end()};
  }
  void Release() override {
    for (TensorInfo* const tensor : held_) {
      tensor->data = nullptr;
      tensor->source = nullptr;
      tensor->bytes = 0;
      tensor->part = nullptr;
    }
    held_.clear();
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

  struct Sent : SentTensor {
    TensorInfo* own = nullptr;  // of tensors_; null for a tensor with parts
    WholeTensor whole;
  };

  Sent& AddSent(const std::string& name, const SentTensor& sent) {
    auto& added = sent_[name] = std::make_unique<Sent>(Sent{sent});
    return *added;
  }

  void SetBytes(TensorInfo* tensor, const TensorInfo& bytes) {
    tensor->type = bytes.type;
    tensor->data = bytes.data;
    tensor->bytes = bytes.bytes;
    tensor->source = bytes.source;
    held_.push_back(tensor);
  }

  absl::Status CheckHeld(const TensorInfo& tensor) const {
    if (absl::c_linear_search(held_, &tensor)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("tensor ", tensor.name, " is not in memory"));
  }

  const Reader reader_;
  std::vector<std::unique_ptr<TensorInfo>> tensors_;  // in the order of the configuration
  absl::flat_hash_map<std::string, TensorInfo*> by_name_;
  absl::flat_hash_map<std::string, std::unique_ptr<Sent>> sent_;
  std::vector<TensorInfo*> held_;  // the tensors that can be read
};

}  // namespace

std::unique_ptr<MemoryCheckpoint> MemoryCheckpoint::Create(const ModelConfig& config) {
  return std::make_unique<HeldTensors>(config);
}

}  // namespace somnus
