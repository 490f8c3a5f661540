#pragma once
// A file without a name on the disk of a directory, and the space in that file: the kernel frees the file
// when the process ends, in whichever way.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace somnus {

// Owns the descriptor. Not thread safe.
class SpillFile {
 public:
  // Opens the file with O_DIRECT where the file system can. The error names the directory.
  static absl::StatusOr<std::unique_ptr<SpillFile>> Open(const std::string& dir);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  int fd() const { return fd_; }
  // Otherwise written bytes take page cache, until DropCache.
  bool direct() const { return direct_; }
  // Takes disk space for `bytes`, a multiple of kSpillAlign, and returns its offset. ResourceExhausted: the
  // disk is full.
  absl::StatusOr<int64_t> Take(int64_t bytes);
  // Gives the space back, to the disk as well.
  void Give(int64_t offset, int64_t bytes);
  // Waits until the written bytes are on the disk, and drops their pages from the cache.
  absl::Status DropCache();
  // The status of a failed call, with the directory.
  absl::Status Error(int error, const char* what) const;

 private:
  SpillFile(std::string dir, int fd, bool direct) : dir_(std::move(dir)), fd_(fd), direct_(direct) {}
  int64_t FindFree(int64_t bytes);

  const std::string dir_;
  const int fd_;
  const bool direct_;
  int64_t size_ = 0;
  std::map<int64_t, int64_t> free_;  // bytes by offset, below size_; disjoint, never touching
};

}  // namespace somnus
