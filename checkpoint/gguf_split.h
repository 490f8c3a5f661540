#pragma once
// A GGUF model cut into several files, as llama.cpp's gguf-split does: NAME-00001-of-00003.gguf has the
// metadata and maybe tensors, the others have tensors; each says which part of how many it is.

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/family.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Adds the tensors of the other files of a model that `first`, at `path`, is the first part of; a file that
// is whole by itself has none. Returns the model's name: the file's, without extension and part number.
absl::StatusOr<std::string> AddGgufSplits(const Family& family, const std::string& path,
                                          const GgufFile& first, TensorTable* tensors);

}  // namespace somnus
