#include "tools/cli/control_options.h"

#include <utility>

#include "tools/cli/commands.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {

FlagTable ControlTable(ControlOptions* o, const std::string& name, std::string about, std::vector<Flag> own) {
  FlagGroup server = ServerFlags(&o->server);
  server.flags.push_back(
      Flag::Time("timeout", &o->timeout, absl::Seconds(1), absl::Hours(24), "give up after this time"));
  own.push_back(Flag::Text("model", &o->model, "which model, where several are served").Shows("NAME"));
  return {.program = "somnus " + name,
          .usage = "somnus " + name + " [flags]",
          .about = std::move(about),
          .groups = {{"Flags", std::move(own)}, std::move(server)}};
}

Flag ModeFlag(ControlOptions* o) {
  return Flag::OneOf(
      "mode", &o->mode,
      {{"keep", v1::SLEEP_MODE_KEEP}, {"wait", v1::SLEEP_MODE_WAIT}, {"abort", v1::SLEEP_MODE_ABORT}},
      "open requests go on afterwards, with the same tokens; end first (new ones wait); or "
      "are aborted");
}

int RunControl(const FlagTable& table, const std::vector<std::string>& args,
               const std::function<absl::StatusOr<int>()>& command, std::vector<std::string>* positional) {
  if (const auto code = ParseCommand(table, args, positional)) return *code;
  return ExitCode(command());
}

}  // namespace somnus::cli
