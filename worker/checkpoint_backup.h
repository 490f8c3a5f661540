#pragma once
// A checkpoint's own files as the backup of the weights that were read from them (BACKUP_POLICY_FILE without
// a spill_dir): a sleep copies nothing, and the wake-up reads the files again, if the files have not changed.
//
// Thread safety: bytes() is for any thread, the rest for one.

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_stamp.h"

namespace somnus {

class CheckpointBackup {
 public:
  // The weights are in memory, with the contents of `files`.
  void SetRead(CheckpointStamp files) { files_ = std::move(files); }
  // Weights of `bytes` bytes sleep, and only the files have their contents.
  void Begin(int64_t bytes) { bytes_ = bytes; }
  // The weights are awake, or were given up.
  void End() { bytes_ = 0; }

  // The bytes that the files are the backup of; 0: the files are no backup.
  int64_t bytes() const { return bytes_; }
  bool in_use() const { return bytes() > 0; }

  // Ok when the files are the same as when they were read. `now`: the stamp of the files, or why there is
  // none. FailedPrecondition names the file, and says how the backup is given up.
  absl::Status Check(const absl::StatusOr<CheckpointStamp>& now) const;

 private:
  CheckpointStamp files_;
  std::atomic<int64_t> bytes_{0};
};

}  // namespace somnus
