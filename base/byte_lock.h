#pragma once
// Locks on single bytes of a file (F_OFD_SETLK and F_OFD_GETLK, Linux 3.15). The locks belong to the open
// file, not to the process; the kernel releases the locks with the file's last descriptor, however the
// process ends.

#include <fcntl.h>
#include <unistd.h>

namespace somnus {

// `type`: F_RDLCK, F_WRLCK or F_UNLCK.
inline struct flock ByteLock(short type, off_t byte) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

}  // namespace somnus
