#include "tools/cli/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {

namespace {

// Borrows the texts.
std::vector<char*> Argv(const std::string& path, const std::vector<std::string>& args) {
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  return argv;
}

}  // namespace

absl::StatusOr<std::string> OwnPath() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
  if (n <= 0 || n == sizeof(self)) return absl::InternalError("cannot read /proc/self/exe");
  return std::string(self, n);
}

absl::StatusOr<std::string> ProgramPath(const std::string& name, const std::string& remedy) {
  ASSIGN_OR_RETURN(const std::string self, OwnPath());
  absl::string_view folder = self;
  for (int up = 0; up < 2; ++up) folder = folder.substr(0, folder.rfind('/'));
  std::string path = absl::StrCat(folder, "/", name);
  if (access(path.c_str(), X_OK) != 0)
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(errno), "; ", remedy));
  return path;
}

absl::StatusOr<std::string> CoordinatorPath() {
  return ProgramPath("coordinator/coordinator", "build it with: bazel build //coordinator //worker");
}

absl::StatusOr<std::string> OutputOf(const std::string& path, const std::vector<std::string>& args) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, path.c_str(), &actions, nullptr, Argv(path, args).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  char buffer[65536];
  for (ssize_t n; error == 0 && (n = read(ends[0], buffer, sizeof(buffer))) > 0;) output.append(buffer, n);
  close(ends[0]);
  if (error != 0) return absl::InternalError(absl::StrCat(path, ": ", strerror(error)));
  waitpid(pid, nullptr, 0);
  return output;
}

int Become(const std::string& path, const std::vector<std::string>& args) {
  execv(path.c_str(), Argv(path, args).data());
  return Fail(absl::InternalError(absl::StrCat(path, ": ", strerror(errno))));
}

}  // namespace somnus::cli
