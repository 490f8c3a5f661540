#pragma once
// A GGUF model cut into several files, as llama.cpp's gguf-split does: NAME-00001-of-00003.gguf has the
// metadata and maybe tensors, the others have tensors; each says which part of how many it is.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/family.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// How many files the model has that `first` is the first part of; 1 for a file that is whole by itself.
// InvalidArgument for another part: it says so before anything else that it lacks.
absl::StatusOr<int64_t> CountGgufParts(const GgufFile& first);

// Adds the tensors of the other ones of `count` files; `first` is at `path`. Returns the model's name: the
// file's, without extension and part number.
absl::StatusOr<std::string> AddGgufSplits(const Family& family, const std::string& path,
                                          const GgufFile& first, int64_t count, TensorTable* tensors);

}  // namespace somnus
