#pragma once
// A private directory for the sockets of one process, which ends with it.
//
// A process that is killed leaves its directory, which the next process with the same parent directory
// removes. A living process holds a lock on its directory, which also keeps systemd-tmpfiles away. Thread
// safety: methods are for one thread at a time.

#include <string>

#include "absl/status/statusor.h"

namespace somnus {

class SocketDir {
 public:
  // Makes `parent`/somnus-XXXXXX (mode 0700) and locks the directory, after removing directories of this user
  // with owners that have ended. The default is short: a socket's path has 107 bytes at most.
  static absl::StatusOr<SocketDir> Create(const std::string& parent = "/tmp");
  // Removes the directory and the files in it.
  ~SocketDir();
  SocketDir(SocketDir&& other) noexcept;
  SocketDir& operator=(SocketDir&&) = delete;

  const std::string& path() const { return path_; }

 private:
  SocketDir(std::string path, int directory) : path_(std::move(path)), directory_(directory) {}

  std::string path_;
  int directory_;  // the locked descriptor; -1: moved from
};

}  // namespace somnus
