#include "checkpoint/tensor_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/packed_weight.h"

namespace somnus {

std::string ShapeString(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status TensorTable::Add(TensorInfo tensor) {
  RETURN_IF_ERROR(CheckIsNew(tensor.name, tensor.file));
  return AddPacked(std::move(tensor));
}

absl::Status TensorTable::AddPacked(TensorInfo tensor) {
  if (by_name_.contains(tensor.name)) return CheckIsNew(tensor.name, tensor.file);
  auto owned = std::make_unique<TensorInfo>(std::move(tensor));
  by_name_.emplace(owned->name, owned.get());
  tensors_.push_back(std::move(owned));
  return absl::OkStatus();
}

absl::Status TensorTable::AddRaw(RawTensor tensor) {
  RETURN_IF_ERROR(CheckIsNew(tensor.name, tensor.file));
  auto owned = std::make_unique<RawTensor>(std::move(tensor));
  const std::string name = owned->name;
  raw_[name] = std::move(owned);
  return absl::OkStatus();
}

absl::Status TensorTable::CheckIsNew(const std::string& name, const std::string& file) const {
  if (!Has(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", name, " is there more than once"));
}

absl::Status TensorTable::Rename(absl::FunctionRef<std::string(const std::string&)> name_of) {
  for (const auto& tensor : tensors_) {
    std::string name = name_of(tensor->name);
    if (name == tensor->name) continue;
    RETURN_IF_ERROR(CheckIsNew(name, tensor->file));
    by_name_.erase(tensor->name);
    tensor->name = std::move(name);
    by_name_.emplace(tensor->name, tensor.get());
  }
  for (const RawTensor* const tensor : AllRaw()) {
    std::string name = name_of(tensor->name);
    if (name == tensor->name) continue;
    RETURN_IF_ERROR(CheckIsNew(name, tensor->file));
    auto moved = raw_.extract(tensor->name);
    moved.mapped()->name = name;
    raw_.emplace(std::move(name), std::move(moved.mapped()));
  }
  return absl::OkStatus();
}

absl::Status TensorTable::SetForms(const ModelConfig& config, TensorOrigin origin) {
  absl::Status status;
  ForEachUncommonTensor(config, origin, [&](const std::string& name, const HeadOrder& heads, float offset) {
    const auto it = by_name_.find(name);
    if (it == by_name_.end()) return;
    TensorInfo& tensor = *it->second;
    const bool mixes_blocks =
        tensor.scaled_by_blocks && heads.head_dim > 0 && tensor.packed->block_rows % heads.head_dim != 0;
    if (mixes_blocks && status.ok()) {
      status = absl::UnimplementedError(
          absl::StrCat("config.json: quantization_config: blocks of ", tensor.packed->block_rows,
                       " rows that share scales are not supported for heads of ", heads.head_dim,
                       " whose rotary embedding is partial or of neighbours, as of tensor ", name));
    }
    tensor.heads = heads;
    tensor.offset = offset;
  });
  return status;
}

const TensorInfo* TensorTable::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

const RawTensor* TensorTable::FindRaw(absl::string_view name) const {
  const auto it = raw_.find(name);
  return it == raw_.end() ? nullptr : it->second.get();
}

std::vector<const RawTensor*> TensorTable::AllRaw() const {
  std::vector<const RawTensor*> all;
  for (const auto& [name, tensor] : raw_) all.push_back(tensor.get());
  std::sort(all.begin(), all.end(), [](const RawTensor* a, const RawTensor* b) { return a->name < b->name; });
  return all;
}

std::vector<const TensorInfo*> TensorTable::All() const {
  std::vector<const TensorInfo*> all;
  all.reserve(tensors_.size());
  for (const auto& tensor : tensors_) all.push_back(tensor.get());
  return all;
}

absl::Status TensorTable::Expect(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) {
    if (const RawTensor* raw = FindRaw(name); raw != nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(raw->file, ": tensor ", name, " has type ", raw->dtype, ", which is not supported"));
    }
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " is missing from the checkpoint"));
  }
  if (tensor->shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(tensor->file, ": tensor ", name, " has shape ",
                                                   ShapeString(tensor->shape),
                                                   ", the configuration asks for ", ShapeString(shape)));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const ModelConfig& config, const TensorTable& tensors) {
  return ForEachTensor(config, [&](const std::string& name, const std::vector<int64_t>& shape) {
    return tensors.Expect(name, shape);
  });
}

}  // namespace somnus
