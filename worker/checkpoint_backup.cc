#include "worker/checkpoint_backup.h"

#include "absl/strings/str_cat.h"

namespace somnus {

absl::Status CheckpointBackup::Check(const absl::StatusOr<CheckpointStamp>& now) const {
  const absl::Status same = now.ok() ? CheckSameFiles(files_, *now) : now.status();
  if (same.ok()) return same;
  return absl::FailedPreconditionError(absl::StrCat(
      "the checkpoint is the backup of the weights that sleep, and has changed: ", same.message(),
      "; a sleep at level 2 gives the backup up"));
}

}  // namespace somnus
