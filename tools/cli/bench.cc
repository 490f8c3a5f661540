// The command bench: becomes serving_bench, with the address that the other commands have.
#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tools/cli/commands.h"
#include "tools/cli/programs.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

// The arguments for serving_bench: --url and --port become --base-url, and so does SOMNUS_URL where no
// argument names a server.
std::vector<std::string> Translated(const std::vector<std::string>& args) {
  std::vector<std::string> out;
  bool has_url = false;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    const bool is_url = absl::ConsumePrefix(&arg, "--url");
    const bool is_port = !is_url && absl::ConsumePrefix(&arg, "--port");
    const bool has_value = absl::ConsumePrefix(&arg, "=");
    has_url |= absl::StartsWith(absl::StrReplaceAll(args[i], {{"_", "-"}}), "--base-url");
    if ((!is_url && !is_port) || (!has_value && !arg.empty())) {
      out.push_back(args[i]);
      continue;
    }
    const std::string value = has_value ? std::string(arg) : i + 1 < args.size() ? args[++i] : "";
    const bool has_scheme = absl::StrContains(value, "://");
    out.push_back(absl::StrCat("--base-url=",
                               is_port      ? "http://127.0.0.1:"
                               : has_scheme ? ""
                                            : "http://",
                               value));
    has_url = true;
  }
  const char* url = getenv("SOMNUS_URL");
  if (!has_url && url != nullptr && *url != '\0') out.push_back(absl::StrCat("--base-url=", url));
  return out;
}

}  // namespace

int RunBench(const std::vector<std::string>& args) {
  const absl::StatusOr<std::string> path =
      ProgramPath("tools/bench/serving_bench", "build it with: bazel build //tools/bench:serving_bench");
  if (!path.ok()) return Fail(path.status());
  return Become(*path, Translated(args));
}

}  // namespace somnus::cli
