#include "base/socket_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr char kPrefix[] = "somnus-";
constexpr size_t kNameBytes = sizeof(kPrefix) - 1 + 6;
// The marker is made once the directory is locked. A directory without a marker has no owner yet, or another
// kind of owner.
constexpr char kMarker[] = "locked";

int OpenDirectory(int parent, const char* name) {
  return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

std::vector<std::string> Entries(int directory) {
  std::vector<std::string> names;
  DIR* const stream = fdopendir(fcntl(directory, F_DUPFD_CLOEXEC, 0));
  if (stream == nullptr) return names;
  rewinddir(stream);  // the position is the descriptor's
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(stream);
  return names;
}

// Removes the entries of the directory, which has no folders, and no target of a link.
void RemoveFiles(int directory) {
  for (const std::string& name : Entries(directory)) unlinkat(directory, name.c_str(), 0);
}

// Whether the directory's owner, a process of this user, has ended. This process then has the lock.
bool IsLeft(int directory) {
  struct stat info;
  if (fstat(directory, &info) != 0 || info.st_uid != geteuid() || (info.st_mode & 077) != 0) return false;
  if (faccessat(directory, kMarker, F_OK, AT_SYMLINK_NOFOLLOW) != 0) return false;
  return flock(directory, LOCK_EX | LOCK_NB) == 0;
}

void RemoveLeft(const std::string& parent_path) {
  const int parent = open(parent_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return;
  for (const std::string& name : Entries(parent)) {
    if (!absl::StartsWith(name, kPrefix) || name.size() != kNameBytes) continue;
    const int directory = OpenDirectory(parent, name.c_str());
    if (directory < 0) continue;
    if (IsLeft(directory)) {
      RemoveFiles(directory);
      unlinkat(parent, name.c_str(), AT_REMOVEDIR);
    }
    close(directory);
  }
  close(parent);
}

}  // namespace

absl::StatusOr<SocketDir> SocketDir::Create(const std::string& parent) {
  RemoveLeft(parent);
  std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
  const auto error = [&] {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a directory in ", parent));
  };
  if (mkdtemp(path.data()) == nullptr) return error();
  SocketDir made(path, OpenDirectory(AT_FDCWD, path.c_str()));
  if (made.directory_ < 0 || flock(made.directory_, LOCK_EX | LOCK_NB) != 0) return error();
  const int marker = openat(made.directory_, kMarker, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (marker < 0) return error();
  close(marker);
  return made;
}

SocketDir::SocketDir(SocketDir&& other) noexcept
    : path_(std::move(other.path_)), directory_(std::exchange(other.directory_, -1)) {}

SocketDir::~SocketDir() {
  if (directory_ < 0) return;
  RemoveFiles(directory_);
  rmdir(path_.c_str());
  close(directory_);
}

}  // namespace somnus
