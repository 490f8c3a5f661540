#pragma once
// Tells whether two hosts have the same checkpoint, without reading it whole.

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

// SHA-256 (64 hexadecimal digits) over what decides a model's outputs: its configuration (config.json, or the
// metadata of a GGUF file), the tensor table (names, types, shapes, places), the sizes of the files with
// tensors, and samples of the tensors' data. Equal for equal files, whatever their path, times and owners
// are. Not equal when a configuration, a table or a size differs, or a byte that is sampled: of up to 512
// tensors, and of as many of those that quantized matrices are made of, spread over the table, 4 KiB at the
// start, in the middle and at the end. What the tokenizer reads is not part of it, unless a GGUF file holds
// it, because workers see token ids alone.
//
// `path` and `format` as in Checkpoint::Open: a dummy is its config.json alone. Reads at most about 12 MiB
// and the headers. Errors name the file: NotFound, InvalidArgument, Unimplemented, DataLoss, as
// Checkpoint::Open. Thread safe.
absl::StatusOr<std::string> CheckpointFingerprint(const std::string& path,
                                                  LoadFormat format = LoadFormat::kAuto);

}  // namespace somnus
