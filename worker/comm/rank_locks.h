#pragma once
// Says which ranks of a group in shared memory still run.

#include <utility>

#include "absl/status/statusor.h"
#include "worker/comm/socket_io.h"

namespace somnus {

// Each rank holds a lock on its own byte of the file behind the shared memory. The kernel releases the lock
// with the process, however that ends. Unlike a pid it means the same in every container: ranks of one host
// may be in pid namespaces of their own, where they cannot see each other, and several have pid 1.
//
// Movable. Held may be called from any thread. Two ranks may be threads of one process.
class RankLocks {
 public:
  // Takes this rank's lock; `file` itself may be closed afterwards. Internal when the system has no such
  // locks (Linux 3.15), or another rank holds this one.
  static absl::StatusOr<RankLocks> Take(int file, int rank);

  // Whether another rank still holds its lock; it must have taken it before. One system call.
  bool Held(int rank) const;

 private:
  explicit RankLocks(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;  // an open file of its own: locks belong to that, not to the process
};

}  // namespace somnus
