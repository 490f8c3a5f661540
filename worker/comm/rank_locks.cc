#include "worker/comm/rank_locks.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/byte_lock.h"

namespace somnus {

absl::StatusOr<RankLocks> RankLocks::Take(int file, int rank) {
  const std::string path = absl::StrCat("/proc/self/fd/", file);
  UniqueFd own(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = ByteLock(F_WRLCK, rank);
  if (own.get() < 0 || fcntl(own.get(), F_OFD_SETLK, &lock) != 0) {
    return absl::InternalError(
        absl::StrCat("locking rank ", rank, "'s byte of the group's shared memory: ", strerror(errno)));
  }
  return RankLocks(std::move(own));
}

bool RankLocks::Held(int rank) const {
  struct flock lock = ByteLock(F_WRLCK, rank);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace somnus
