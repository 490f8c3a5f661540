#include <stdio.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cli/commands.h"
#include "tools/cli/programs.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

constexpr char kAbout[] =
    "usage: somnus serve MODEL [flags]\n"
    "       somnus serve --config=FILE [flags]\n\n"
    "Serves MODEL, a Hugging Face directory, a .gguf file or a name (somnus list), until Ctrl-C or SIGTERM.\n"
    "GET /health is 200 as soon as requests are served. Flags have vLLM's names where vLLM has one; hyphens "
    "and\n"
    "underscores are the same, and so are `--flag value` and `--flag=value`.\n\n"
    "  somnus serve SmolLM2-135M-Instruct.Q4_1.gguf --workers=local:2\n"
    "  somnus serve ./Qwen3-0.6B --dtype bfloat16 --max-num-seqs 64 --port 9000\n\n"
    "What runs is the coordinator, in place of this process; these are its flags:\n\n";

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
  return Become(*path, args);
}

}  // namespace somnus::cli
