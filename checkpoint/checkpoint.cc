#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path, LoadFormat format) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("model ", BaseName(path), ": cannot open"));
  }
  if (format == LoadFormat::kDummy) return OpenDummyCheckpoint(path);
  return S_ISDIR(info.st_mode) ? OpenHfCheckpoint(path) : OpenGgufCheckpoint(path);
}

}  // namespace somnus
