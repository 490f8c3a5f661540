#pragma once
// Tells whether a checkpoint's files are still the files that were read, without reading them again. A
// fingerprint cannot tell that: a fingerprint samples, and takes equal files for the same.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

// A file, in the file system's view.
struct FileStamp {
  std::string name;  // without directories: what messages may show
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;  // since 1970

  bool operator==(const FileStamp&) const = default;
};

// The stamps of all files that decide the weights: the configuration, the index, and the files with tensors,
// by name. Plain values.
struct CheckpointStamp {
  std::vector<FileStamp> files;

  bool operator==(const CheckpointStamp&) const = default;
};

// `path` and `format` as in Checkpoint::Open. To be taken before the files are read: a change that comes
// later then shows. Reads no file but the index. Errors name the file: NotFound, InvalidArgument (a damaged
// index), or as errno says. Thread safe.
absl::StatusOr<CheckpointStamp> TakeCheckpointStamp(const std::string& path,
                                                    LoadFormat format = LoadFormat::kAuto);

// FailedPrecondition names the first file of `before` that is not the same `now`, or a new file, and the
// difference.
absl::Status CheckSameFiles(const CheckpointStamp& before, const CheckpointStamp& now);

}  // namespace somnus
