#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

namespace {

// "meta-llama/Llama-3-8B": one folder and a name in it, as hubs call their models.
bool LooksLikeHubId(absl::string_view path) {
  const size_t slash = path.find('/');
  return slash != path.npos && slash > 0 && slash + 1 < path.size() && path.rfind('/') == slash &&
         path[0] != '.' && path[0] != '~' && !absl::EndsWithIgnoreCase(path, ".gguf");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path, LoadFormat format) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const absl::Status status =
        absl::ErrnoToStatus(errno, absl::StrCat("model ", BaseName(path), ": cannot open"));
    if (!absl::IsNotFound(status) || !LooksLikeHubId(path)) return status;
    return absl::NotFoundError(absl::StrCat(status.message(),
                                            "; a model is a directory or a .gguf file on disk: one of ",
                                            "a hub is downloaded first, then its path is given"));
  }
  if (format == LoadFormat::kDummy) return OpenDummyCheckpoint(path);
  return S_ISDIR(info.st_mode) ? OpenHfCheckpoint(path) : OpenGgufCheckpoint(path);
}

}  // namespace somnus
