// The command reset-prefix-cache.
#include <stdio.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/openai.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"
#include "tools/http/percent_encoded.h"

namespace somnus::cli {
namespace {

struct ResetOptions {
  ServerOptions server;
  std::string model;
  bool running = false;
};

absl::StatusOr<int> Reset(const ResetOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  std::string path =
      absl::StrCat("/reset_prefix_cache?reset_running_requests=", options.running ? "true" : "false");
  if (!options.model.empty()) absl::StrAppend(&path, "&model=", PercentEncoded(options.model));
  ASSIGN_OR_RETURN(const HttpResponse response, server.AdminClient().Post(path, ""));
  if (response.status != 200) return absl::InternalError(ErrorMessage(response));
  puts("the prefix cache is empty");
  return kOk;
}

}  // namespace

int RunResetPrefixCache(const std::vector<std::string>& args) {
  ResetOptions o;
  const FlagTable table = {
      .program = "somnus reset-prefix-cache",
      .usage = "somnus reset-prefix-cache [flags]",
      .about = "Drops the KV blocks of prompts that were computed before.",
      .groups = {{"Flags",
                  {Flag::Switch("running", &o.running,
                                "those of running requests, too, which are preempted and computed again"),
                   Flag::Text("model", &o.model, "which model, where several are served").Shows("NAME")}},
                 ServerFlags(&o.server)}};
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(Reset(o));
}

}  // namespace somnus::cli
