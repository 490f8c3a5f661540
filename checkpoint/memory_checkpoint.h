#pragma once
// The tensors of a model with bytes from memory, one tensor at a time: tensors that a client sends are read
// in the same way as tensors that a file stores.
//
// Ownership: owns names and shapes; the bytes are borrowed. Thread safety: as Checkpoint, but for Hold and
// Release, during which nobody may read.

#include <memory>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

class MemoryCheckpoint : public Checkpoint {
 public:
  // Has every tensor that a model of `config` needs, and bytes of none.
  static std::unique_ptr<MemoryCheckpoint> Create(const ModelConfig& config);

  // From now on only `tensor`, out of Tensors(), can be read: all of its elements, dense and row-major, as
  // `type`, which is not quantized. `source`: the map that `data` points into, or null. `data` and `source`
  // have to stay until Release.
  virtual void Hold(const TensorInfo& tensor, StorageType type, const uint8_t* data,
                    const MappedFile* source) = 0;
  virtual void Release() = 0;
};

}  // namespace somnus
