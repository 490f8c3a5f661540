#pragma once
// Tells whether a checkpoint's files are still those that were read, without reading them again. What a
// fingerprint cannot say: it samples, and takes equal files for the same.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

// A file as its file system knows it.
struct FileStamp {
  std::string name;  // without directories: what messages may show
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;  // since 1970

  bool operator==(const FileStamp&) const = default;
};

// Of every file that decides the weights: the configuration, the index, and the files with tensors, by
// name. Plain values.
struct CheckpointStamp {
  std::vector<FileStamp> files;

  bool operator==(const CheckpointStamp&) const = default;
};

// `path` and `format` as in Checkpoint::Open. To be taken before the files are read: a change that comes
// later then shows. Of the files it reads the index alone. Errors name the file: NotFound, InvalidArgument (a
// damaged index), others as errno says. Thread safe.
absl::StatusOr<CheckpointStamp> TakeCheckpointStamp(const std::string& path,
                                                    LoadFormat format = LoadFormat::kAuto);

// FailedPrecondition names the first file of `before` that is not the same `now`, or one that has come, and
// says how it differs.
absl::Status CheckSameFiles(const CheckpointStamp& before, const CheckpointStamp& now);

}  // namespace somnus
