#pragma once
// A file mapped read-only. Ownership: the object owns the map. Thread safety: immutable after Open.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/map_guard.h"

namespace somnus {

class MappedFile {
 public:
  // NotFound when there is no such file; InvalidArgument when the path is no regular file; any other error as
  // errno says. An empty file maps to size() == 0.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  // Maps POSIX shared memory. `name`: as of shm_open, a slash and a name without a slash; InvalidArgument for
  // any other name.
  static absl::StatusOr<std::unique_ptr<MappedFile>> OpenShared(const std::string& name);
  // A stand-in for a file, over memory that outlives the stand-in (tests and fuzzers).
  static std::unique_ptr<MappedFile> Borrow(std::string name, absl::string_view bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  absl::string_view text() const {
    return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)};
  }
  // File name without directories, as error messages may show.
  const std::string& name() const { return name_; }

  // Ok when all that has been read so far was really in the file. A file that another process truncates reads
  // as zeros from there on, so this is called after reading and before using. DataLoss names the file. Costs
  // a system call.
  absl::Status CheckWhole() const;
  // Reads the bytes [begin, end), so that the page cache has them, and maps no pages. Blocks while the disk
  // reads. Does nothing for a stand-in.
  absl::Status ReadIntoPageCache(uint64_t begin, uint64_t end) const;

 private:
  MappedFile(std::string name, const uint8_t* data, uint64_t size, int fd);
  // Takes `fd`, which may be an error's -1.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Map(std::string name, int fd);

  std::string name_;
  const uint8_t* data_;
  uint64_t size_;
  int fd_;  // -1: borrowed
  std::unique_ptr<MapGuard> guard_;
};

// The bytes [begin, end) of a file.
struct FileRange {
  const MappedFile* file = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;

  bool operator==(const FileRange&) const = default;
};

// The part of `path` after its last slash (trailing slashes ignored).
std::string BaseName(absl::string_view path);
// The last part of the path that `path` resolves to, which helps with "." and "models/x/.."; for a version in
// a hub's cache the model's name.
std::string ResolvedName(const std::string& path);

}  // namespace somnus
