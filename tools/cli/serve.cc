#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/cli/commands.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

constexpr char kAbout[] =
    "usage: somnus serve MODEL [flags]\n"
    "       somnus serve --config=FILE [flags]\n\n"
    "Serves MODEL, a Hugging Face directory or a .gguf file, until Ctrl-C or SIGTERM. GET /health is 200 as\n"
    "soon as requests are served. Flags have vLLM's names where vLLM has one; hyphens and underscores are "
    "the same,\n"
    "and so are `--flag value` and `--flag=value`.\n\n"
    "  somnus serve SmolLM2-135M-Instruct.Q4_1.gguf --workers=local:2\n"
    "  somnus serve ./Qwen3-0.6B --dtype bfloat16 --max-num-seqs 64 --port 9000\n\n"
    "What runs is the coordinator, in place of this process; these are its flags:\n\n";

// The coordinator beside this binary: <bin>/tools/somnus -> <bin>/coordinator/coordinator.
absl::StatusOr<std::string> CoordinatorPath() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
  if (n <= 0 || n == sizeof(self)) return absl::InternalError("cannot read /proc/self/exe");
  absl::string_view folder(self, n);
  for (int up = 0; up < 2; ++up) folder = folder.substr(0, folder.rfind('/'));
  std::string path = absl::StrCat(folder, "/coordinator/coordinator");
  if (access(path.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", strerror(errno), "; build it with: bazel build //coordinator //worker"));
  }
  return path;
}

}  // namespace

int RunServe(const std::vector<std::string>& args) {
  if (args.empty()) return Fail(absl::InvalidArgumentError("which model? usage: somnus serve MODEL [flags]"));
  if (std::find_if(args.begin(), args.end(), [](const std::string& arg) {
        return arg == "--help" || arg == "--help=all" || arg == "-h";
      }) != args.end()) {
    fputs(kAbout, stdout);
    fflush(stdout);
  }
  const absl::StatusOr<std::string> path = CoordinatorPath();
  if (!path.ok()) return Fail(path.status());
  std::vector<char*> argv{const_cast<char*>(path->c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(path->c_str(), argv.data());
  return Fail(absl::InternalError(absl::StrCat(*path, ": ", strerror(errno))));
}

}  // namespace somnus::cli
