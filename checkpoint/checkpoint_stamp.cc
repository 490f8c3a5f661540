#include "checkpoint/checkpoint_stamp.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/gguf/gguf_split.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_directory.h"

namespace somnus {
namespace {

// `name`: relative to the model's directory, or a GGUF file's own.
absl::StatusOr<FileStamp> StampOf(const std::string& path, const std::string& name) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, ": cannot stat"));
  return FileStamp{.name = name,
                   .device = info.st_dev,
                   .inode = info.st_ino,
                   .size = static_cast<uint64_t>(info.st_size),
                   .modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

// Paths, each with the file's name in a stamp.
using NamedPaths = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<NamedPaths> FilesOf(const std::string& path, LoadFormat format) {
  NamedPaths files;
  struct stat info;
  if (stat(path.c_str(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("model ", BaseName(path), ": cannot open"));
  if (!S_ISDIR(info.st_mode)) {
    for (std::string& part : GgufPartPaths(path)) files.emplace_back(part, BaseName(part));
    return files;
  }
  std::vector<std::string> names = {"config.json"};
  if (format != LoadFormat::kDummy) {
    ASSIGN_OR_RETURN(const std::vector<std::string> more, SafetensorsFiles(path));
    names.insert(names.end(), more.begin(), more.end());
  }
  for (const std::string& name : names) files.emplace_back(absl::StrCat(path, "/", name), name);
  return files;
}

const FileStamp* Find(const CheckpointStamp& stamp, const std::string& name) {
  const auto found = std::find_if(stamp.files.begin(), stamp.files.end(),
                                  [&name](const FileStamp& file) { return file.name == name; });
  return found == stamp.files.end() ? nullptr : &*found;
}

std::string Difference(const FileStamp& before, const FileStamp& now) {
  if (now.device != before.device || now.inode != before.inode) return "is another file";
  if (now.size != before.size) return absl::StrCat("has ", now.size, " bytes, not ", before.size);
  return "was modified";
}

}  // namespace

absl::StatusOr<CheckpointStamp> TakeCheckpointStamp(const std::string& path, LoadFormat format) {
  ASSIGN_OR_RETURN(const NamedPaths files, FilesOf(path, format));
  CheckpointStamp stamp;
  for (const auto& [file, name] : files) {
    ASSIGN_OR_RETURN(stamp.files.emplace_back(), StampOf(file, name));
  }
  std::sort(stamp.files.begin(), stamp.files.end(),
            [](const FileStamp& a, const FileStamp& b) { return a.name < b.name; });
  return stamp;
}

absl::Status CheckSameFiles(const CheckpointStamp& before, const CheckpointStamp& now) {
  for (const FileStamp& file : before.files) {
    const FileStamp* const found = Find(now, file.name);
    if (found == nullptr) return absl::FailedPreconditionError(absl::StrCat(file.name, " is gone"));
    if (*found == file) continue;
    return absl::FailedPreconditionError(absl::StrCat(file.name, " ", Difference(file, *found)));
  }
  for (const FileStamp& file : now.files) {
    if (Find(before, file.name) == nullptr)
      return absl::FailedPreconditionError(absl::StrCat(file.name, " is new"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
