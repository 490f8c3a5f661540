#pragma once
// Puts tensors together that come in chunks (proto/weights.proto), and hands each tensor over once the tensor
// is whole. So a tensor that has come in part has changed nothing.
//
// Memory: the bytes of one tensor as sent, until the tensor is whole; none for a tensor that comes in a
// single chunk. A tensor of another shape than the model's is refused before memory is taken. Shared memory
// is mapped read-only while a chunk is read, and checked against its size; memory of a GPU is copied into the
// tensor's memory. Used by one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/memory_checkpoint.h"
#include "proto/weights.pb.h"

namespace somnus {

class UpdatedTensors {
 public:
  // Takes a whole tensor of the checkpoint, which can be read until Place returns.
  using Place = std::function<absl::Status(const Checkpoint&, const TensorInfo&)>;

  // Copies all bytes of a GPU's memory to `to`.
  using ReadCuda = std::function<absl::Status(const v1::CudaMemory& memory, void* to)>;

  // For a model of this configuration. `needs_all`: the update is complete only with every tensor. Without
  // `read_cuda` memory of a GPU is refused.
  UpdatedTensors(const ModelConfig& config, bool needs_all, Place place, ReadCuda read_cuda = nullptr);
  ~UpdatedTensors();

  // Every tensor that the model needs, by name and shape.
  const Checkpoint& tensors() const { return *tensors_; }

  // InvalidArgument where the model has no tensor of this name, dtype and shape. The data is not looked at.
  absl::Status Check(const v1::WeightChunk& first) const;
  // The next chunk. InvalidArgument names the tensor, also of an unknown name; DataLoss: shared memory was
  // cut while being read; any other error is from `place`. After an error the tensor counts as having come in
  // part, and can be sent anew.
  absl::Status Add(const v1::WeightChunk& chunk);
  // Nothing follows: a tensor that has come in part is dropped, and InvalidArgument names it.
  absl::Status EndStream();

  // InvalidArgument names tensors that are missing, or that have come in part.
  absl::Status CheckComplete() const;

  int64_t num_tensors() const { return static_cast<int64_t>(whole_.size()); }  // that have come whole
  int64_t num_bytes() const { return num_bytes_; }                             // of all chunks
  // The checksum of the names and of the bytes that were in messages, in order.
  uint64_t checksum() const;

 private:
  // The tensor that is coming now.
  struct Part {
    std::string name;
    const TensorInfo* tensor = nullptr;  // null: a tensor that this model computes without
    StorageType type = StorageType::kF32;
    int64_t bytes = 0;  // of the whole
    int64_t received = 0;
    std::unique_ptr<uint8_t[]> memory;  // of `bytes`, from the first chunk that is not the whole
  };

  absl::StatusOr<Part> PartOf(const v1::WeightChunk& first) const;
  absl::Status Begin(const v1::WeightChunk& chunk);
  absl::Status AddSource(const v1::WeightChunk& chunk);
  // `source` is the map that the bytes are in, or null.
  absl::Status AddBytes(absl::Span<const uint8_t> bytes, const MappedFile* source);
  absl::Status AddCudaMemory(const v1::CudaMemory& memory);
  absl::Status CheckRoom(int64_t bytes) const;
  absl::Status TakeMemory();
  // The next bytes of the tensor have arrived in memory.
  absl::Status Received(int64_t bytes);
  absl::Status Finish(const uint8_t* data, const MappedFile* source);

  const std::unique_ptr<MemoryCheckpoint> tensors_;
  const bool needs_all_;
  const Place place_;
  const ReadCuda read_cuda_;
  // For an output matrix that is the embedding: the output matrix's own name and shape, which clients send as
  // well. Or empty.
  std::string tied_name_;
  std::vector<int64_t> tied_shape_;

  Part part_;  // without a name: none
  absl::flat_hash_set<std::string> whole_;
  absl::flat_hash_set<std::string> in_part_;  // begun, and not whole since
  int64_t num_bytes_ = 0;
  // XXH3's state, opaque.
  struct Hash;
  const std::unique_ptr<Hash> hash_;
};

}  // namespace somnus
