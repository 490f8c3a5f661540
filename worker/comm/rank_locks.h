#pragma once
// Says which ranks of a group in shared memory still run.

#include <utility>

#include "absl/status/statusor.h"
#include "worker/comm/socket_io.h"

namespace somnus {

// Each rank holds a lock on the rank's own byte of the file behind the shared memory. The kernel releases the
// lock with the process, however the process ends. Unlike a pid, a lock means the same in every container:
// ranks of a host may be in separate pid namespaces and not see each other, and several ranks may have pid 1.
//
// Movable. Held may be called from any thread. Two ranks may be threads of the same process.
class RankLocks {
 public:
  // Takes this rank's lock; `file` itself may be closed afterwards. Internal when the system has no such
  // locks (Linux 3.15), or a second rank holds this rank's lock.
  static absl::StatusOr<RankLocks> Take(int file, int rank);

  // Whether a rank still holds the lock that the rank has taken before. A single system call.
  bool Held(int rank) const;

 private:
  explicit RankLocks(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;  // opened for this object alone: locks belong to an open file, not to the process
};

}  // namespace somnus
