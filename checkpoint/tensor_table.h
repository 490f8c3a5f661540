#pragma once
// The index of a checkpoint's tensors.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "checkpoint/canonical_tensors.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/storage_type.h"

namespace somnus {

// `shape` as "[2, 3]".
std::string ShapeString(const std::vector<int64_t>& shape);

// A tensor of a type that no model computes with by itself: integers, 8-bit floats.
struct RawTensor {
  std::string name;
  std::string dtype;  // by safetensors' name
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;  // in the map; may be unaligned
  uint64_t bytes = 0;
  std::string file;
  const MappedFile* source = nullptr;
};

// The tensors of a checkpoint and the maps behind the tensors. Move-only data; no locking.
class TensorTable {
 public:
  // InvalidArgument when the name is taken.
  absl::Status Add(TensorInfo tensor);
  // Records a tensor whose type cannot be read by itself: quantized weights are made of such tensors, and for
  // any other use Expect returns the right error. InvalidArgument when the name is taken.
  absl::Status AddRaw(RawTensor tensor);
  // As Add, for a matrix that is made of other tensors. A part may have the matrix's name, and is hidden
  // then.
  absl::Status AddPacked(TensorInfo tensor);
  // Sets TensorInfo::heads and TensorInfo::offset of the tensors of such a model. Unimplemented where rows
  // lie in another order and a head's rows would no longer share the scales of their block.
  absl::Status SetForms(const ModelConfig& config, TensorOrigin origin);
  // Gives every tensor the name that `name_of` returns for its name. InvalidArgument when a name is taken.
  absl::Status Rename(absl::FunctionRef<std::string(const std::string& name)> name_of);
  // Keeps `file` mapped as long as the table exists.
  void Keep(std::unique_ptr<MappedFile> file) { files_.push_back(std::move(file)); }

  const TensorInfo* Find(absl::string_view name) const;
  const RawTensor* FindRaw(absl::string_view name) const;
  // By name.
  std::vector<const RawTensor*> AllRaw() const;
  // True when the checkpoint has the tensor, in a type that can be read or not. For optional tensors: a
  // tensor that is there and cannot be read is an error, not absence.
  bool Has(absl::string_view name) const { return by_name_.contains(name) || raw_.contains(name); }
  std::vector<const TensorInfo*> All() const;
  // Ok when the tensor is there with exactly this shape; NotFound, Unimplemented or InvalidArgument
  // otherwise.
  absl::Status Expect(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  absl::Status CheckIsNew(const std::string& name, const std::string& file) const;

  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<std::unique_ptr<TensorInfo>> tensors_;  // pointers stay valid while the table grows
  absl::flat_hash_map<std::string, TensorInfo*> by_name_;
  absl::flat_hash_map<std::string, std::unique_ptr<RawTensor>> raw_;
};

// Ok when every tensor that a model of this configuration needs is there, in the right shape.
absl::Status CheckTensors(const ModelConfig& config, const TensorTable& tensors);

}  // namespace somnus
