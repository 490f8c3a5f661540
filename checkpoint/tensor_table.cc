#include "checkpoint/tensor_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"

namespace somnus {

std::string ShapeString(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status TensorTable::Add(TensorInfo tensor) {
  RETURN_IF_ERROR(CheckIsNew(tensor.name, tensor.file));
  auto owned = std::make_unique<TensorInfo>(std::move(tensor));
  by_name_.emplace(owned->name, owned.get());
  tensors_.push_back(std::move(owned));
  return absl::OkStatus();
}

absl::Status TensorTable::AddUnsupported(const std::string& name, const std::string& file,
                                         const std::string& type) {
  RETURN_IF_ERROR(CheckIsNew(name, file));
  unsupported_[name] = absl::StrCat(file, ": tensor ", name, " has type ", type);
  return absl::OkStatus();
}

absl::Status TensorTable::CheckIsNew(const std::string& name, const std::string& file) const {
  if (!Has(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", name, " is there more than once"));
}

void TensorTable::SetPermuted(absl::string_view name, int32_t head_dim) {
  const auto it = by_name_.find(name);
  if (it != by_name_.end()) it->second->permuted_head_dim = head_dim;
}

const TensorInfo* TensorTable::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
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
    const auto it = unsupported_.find(name);
    if (it != unsupported_.end()) {
      return absl::UnimplementedError(absl::StrCat(it->second, ", which is not supported"));
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
