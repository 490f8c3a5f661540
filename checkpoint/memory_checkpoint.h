#pragma once
// The tensors of a model with bytes from memory, one tensor at a time: tensors that a client sends are read
// in the same way as tensors that a file stores.
//
// Ownership: owns names and shapes; the bytes are borrowed. Thread safety: as Checkpoint, but for Hold and
// Release, during which nobody may read.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

// A tensor in the form in which clients send it: a tensor of Tensors(), or a whole tensor with its parts in
// Tensors() (whole_tensor.h). The bytes are `num_slices` equal runs; Hold takes one run at a time.
struct SentTensor {
  std::vector<int64_t> shape;
  int64_t num_slices = 1;
};

class MemoryCheckpoint : public Checkpoint {
 public:
  // Has every tensor that a model of `config` needs, and bytes of none.
  static std::unique_ptr<MemoryCheckpoint> Create(const ModelConfig& config);

  // The tensor of this name; nullptr where clients send none. The result stays at its address.
  virtual const SentTensor* FindSent(absl::string_view name) const = 0;

  // Makes a slice of `sent` (from FindSent) readable, and nothing else, until Release. Returns the tensors of
  // Tensors() that have bytes in the slice. The slice's elements lie at `data`, dense and row-major, as
  // `type`, which is not quantized. `source`: the map that `data` points into, or null. `data` and `source`
  // have to stay until Release.
  virtual std::vector<const TensorInfo*> Hold(const SentTensor& sent, int64_t slice, StorageType type,
                                              const uint8_t* data, const MappedFile* source) = 0;
  virtual void Release() = 0;
};

}  // namespace somnus
