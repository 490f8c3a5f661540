// The command models.
#include <stdio.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/control_client.h"
#include "tools/cli/model_list.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);

struct ModelsOptions {
  ServerOptions server;
  bool json = false;
};

absl::StatusOr<int> ListModels(const ModelsOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const v1::ListModelStatusResponse models, ListModelStatus(server, kCallTimeout));
  if (models.models().empty() && !options.json) {
    fputs("no model is served yet: the models are loading; see: somnus status\n", stderr);
    return kOk;
  }
  const std::string text = options.json ? ModelsJson(models) + "\n" : ModelTable(models, OutputColumns());
  return fputs(text.c_str(), stdout) < 0 ? kServerError : kOk;
}

}  // namespace

int RunModels(const std::vector<std::string>& args) {
  if (!args.empty() && args[0] == "add") return RunModelsAdd({args.begin() + 1, args.end()});
  if (!args.empty() && (args[0] == "remove" || args[0] == "rm"))
    return RunModelsRemove({args.begin() + 1, args.end()});
  ModelsOptions o;
  const FlagTable table = {
      .program = "somnus models",
      .usage =
          "somnus models [flags]\n"
          "       somnus models add PATH [--name=NAME] | models remove NAME...    (see their --help)",
      .about =
          "Lists the models that are served: the state of each, the device memory that it holds, the host "
          "memory\n"
          "of its backups, its open requests, how long the oldest of them has waited for the model to wake "
          "up,\n"
          "how much of its KV cache they use, how many of the cache's blocks have memory, and what it is "
          "beside\n"
          "others.",
      .groups = {
          {"Flags", {Flag::Switch("json", &o.json, "the same as JSON (proto/control.proto, ModelStatus)")}},
          ServerFlags(&o.server)}};
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(ListModels(o));
}

}  // namespace somnus::cli
