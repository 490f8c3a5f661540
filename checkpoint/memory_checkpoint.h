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

// A tensor as clients send it: one of Tensors(), or one whose parts are (whole_tensor.h). The bytes are
// `num_slices` equal runs, and each is held by itself.
struct SentTensor {
  std::vector<int64_t> shape;
  int64_t num_slices = 1;
};

class MemoryCheckpoint : public Checkpoint {
 public:
  // Has every tensor that a model of `config` needs, and bytes of none.
  static std::unique_ptr<MemoryCheckpoint> Create(const ModelConfig& config);

  // nullptr: no tensor that clients send has this name. Stays at its address.
  virtual const SentTensor* FindSent(absl::string_view name) const = 0;

  // From now on only the tensors that a slice of `sent`, out of FindSent, has bytes of can be read, and these
  // are returned: all elements of the slice lie at `data`, dense and row-major, as `type`, which is not
  // quantized. `source`: the map that `data` points into, or null. `data` and `source` have to stay until
  // Release.
  virtual std::vector<const TensorInfo*> Hold(const SentTensor& sent, int64_t slice, StorageType type,
                                              const uint8_t* data, const MappedFile* source) = 0;
  virtual void Release() = 0;
};

}  // namespace somnus
