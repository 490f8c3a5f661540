#pragma once
// A GGUF model cut into several files, as llama.cpp's gguf-split does: NAME-00001-of-00003.gguf has the
// metadata and maybe tensors, all further files have tensors; each names its number and the number of all
// parts.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/family.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

// Returns the number of files of the model with the first part `first`; 1 for a model in a single file.
// InvalidArgument when `first` is another part. Called first, because other parts lack the metadata too.
absl::StatusOr<int64_t> CountGgufParts(const GgufFile& first);

// Adds the tensors of the model's other files, `count` with `first`, which is at `path`. Returns the model's
// name: the file's, without extension and part number.
absl::StatusOr<std::string> AddGgufSplits(const Family& family, const std::string& path,
                                          const GgufFile& first, int64_t count, TensorTable* tensors);

// The path of the first file of the model that the file at `path` belongs to: `path` itself, where its name
// does not tell of further files, or where the first file is missing. Opens no file.
std::string FirstGgufPart(const std::string& path);

// The paths of all files of the model that the file at `path` belongs to, as far as its name tells, without
// missing files; `path` alone for a name of a different form. Opens no file.
std::vector<std::string> GgufPartPaths(const std::string& path);

}  // namespace somnus
