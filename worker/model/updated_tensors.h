#pragma once
// Puts tensors together that come in chunks (proto/weights.proto), and hands each tensor of the model over
// once the tensor is whole. So a tensor of the model that has come in part has changed nothing. A client may
// send several tensors of the model as one (SentTensor), such as all experts of a layer; these are handed
// over slice by slice.
//
// Memory: the bytes of one slice as sent, until the slice is whole; none for a slice that comes in a
// single chunk. A tensor of another shape than the model's is refused before memory is taken. Shared memory
// is mapped read-only while a chunk is read, and checked against its size; memory of a GPU is copied into the
// tensor's memory. Used by one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

  // InvalidArgument where no tensor that clients send has this name, dtype and shape. The data is not looked
  // at.
  absl::Status Check(const v1::WeightChunk& first) const;
  // The next chunk. InvalidArgument names the tensor, also of an unknown name; DataLoss: shared memory was
  // cut while being read; any other error is from `place`. After an error the tensor counts as having come in
  // part, and can be sent anew.
  absl::Status Add(const v1::WeightChunk& chunk);
  // Nothing follows: a tensor that has come in part is dropped, and InvalidArgument names it.
  absl::Status EndStream();

  // InvalidArgument names tensors that are missing, or that have come in part.
  absl::Status CheckComplete() const;

  int64_t num_tensors() const { return static_cast<int64_t>(sent_.size()); }  // sent, and whole
  int64_t num_bytes() const { return num_bytes_; }                            // of all chunks
  // The checksum of the names and of the bytes that were in messages, in order.
  uint64_t checksum() const;

 private:
  // The tensor that is coming now.
  struct Part {
    std::string name;
    const SentTensor* tensor = nullptr;  // null: a tensor that this model computes without
    StorageType type = StorageType::kF32;
    int64_t bytes = 0;  // of the whole
    int64_t received = 0;
    int64_t slice_bytes = 0;
    int64_t slice = 0;                  // the one that is coming
    int64_t in_slice = 0;               // bytes of it that have come
    std::unique_ptr<uint8_t[]> memory;  // of `slice_bytes`, from the first bytes that are no whole slice
  };

  absl::StatusOr<Part> PartOf(const v1::WeightChunk& first) const;
  absl::Status Begin(const v1::WeightChunk& chunk);
  absl::Status AddSource(const v1::WeightChunk& chunk);
  // `source` is the map that the bytes are in, or null.
  absl::Status AddBytes(absl::Span<const uint8_t> bytes, const MappedFile* source);
  absl::Status AddCudaMemory(const v1::CudaMemory& memory);
  absl::Status CheckRoom(int64_t bytes) const;
  // How many of the next bytes belong to the slice that is coming.
  int64_t InSlice(int64_t bytes) const;
  // Memory for the slice's next bytes; null for a tensor that this model computes without.
  absl::StatusOr<uint8_t*> TakeMemory();
  // The next bytes of the slice have arrived in memory.
  absl::Status Received(int64_t bytes);
  // The whole slice lies at `data`. The last slice ends the tensor.
  absl::Status FinishSlice(const uint8_t* data, const MappedFile* source);
  void Finish();

  const std::unique_ptr<MemoryCheckpoint> tensors_;
  const bool needs_all_;
  const Place place_;
  const ReadCuda read_cuda_;
  // For an output matrix that is the embedding: the output matrix's own name and shape, which clients send as
  // well. Or empty.
  std::string tied_name_;
  std::vector<int64_t> tied_shape_;

  Part part_;                                 // without a name: none
  absl::flat_hash_set<std::string> whole_;    // tensors of the model
  absl::flat_hash_set<std::string> sent_;     // as they were sent, whole
  absl::flat_hash_set<std::string> in_part_;  // sent: begun, and not whole since
  int64_t num_bytes_ = 0;
  // XXH3's state, opaque.
  struct Hash;
  const std::unique_ptr<Hash> hash_;
};

}  // namespace somnus
