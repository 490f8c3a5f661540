#include "tools/cli/programs.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {

absl::StatusOr<std::string> ProgramPath(const std::string& name, const std::string& remedy) {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
  if (n <= 0 || n == sizeof(self)) return absl::InternalError("cannot read /proc/self/exe");
  absl::string_view folder(self, n);
  for (int up = 0; up < 2; ++up) folder = folder.substr(0, folder.rfind('/'));
  std::string path = absl::StrCat(folder, "/", name);
  if (access(path.c_str(), X_OK) != 0)
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(errno), "; ", remedy));
  return path;
}

absl::StatusOr<std::string> CoordinatorPath() {
  return ProgramPath("coordinator/coordinator", "build it with: bazel build //coordinator //worker");
}

int Become(const std::string& path, const std::vector<std::string>& args) {
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  return Fail(absl::InternalError(absl::StrCat(path, ": ", strerror(errno))));
}

}  // namespace somnus::cli
