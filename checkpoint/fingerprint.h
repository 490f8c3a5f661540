#pragma once
// Tells whether two hosts have the same checkpoint, without reading the whole checkpoint.

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

// SHA-256 (64 hexadecimal digits) over everything that decides a model's outputs: the configuration
// (config.json, or the metadata of a GGUF file), the tensor table (names, types, shapes, places), the sizes
// of the files with tensors, and samples of the tensors' data. Equal for equal files, regardless of path,
// times and owners. Not equal when a configuration, a table or a size differs, or a sampled byte: of up to
// 512 tensors, and of as many parts of quantized matrices, spread over the table, 4 KiB at the start, in the
// middle and at the end. The tokenizer's files are not part of the fingerprint, unless a GGUF file holds
// them, because workers see token ids alone.
//
// `path` and `format` as in Checkpoint::Open: a dummy is its config.json alone. Reads at most about 12 MiB
// and the headers. Errors name the file: NotFound, InvalidArgument, Unimplemented, DataLoss, as
// Checkpoint::Open. Thread safe.
absl::StatusOr<std::string> CheckpointFingerprint(const std::string& path,
                                                  LoadFormat format = LoadFormat::kAuto);

}  // namespace somnus
