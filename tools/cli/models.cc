// The commands models and top.
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bytes_text.h"
#include "base/counted.h"
#include "base/monotonic.h"
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
constexpr char kNewScreen[] = "\033[H\033[2J";

struct ModelsOptions {
  ServerOptions server;
  bool json = false;
  absl::Duration interval = absl::Seconds(2);
  int32_t count = 0;
};

absl::StatusOr<int> ListModels(const ModelsOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const v1::ListModelStatusResponse models, ListModelStatus(server, kCallTimeout));
  const std::string text = options.json ? ModelsJson(models) + "\n" : ModelTable(models, OutputColumns());
  return fputs(text.c_str(), stdout) < 0 ? kServerError : kOk;
}

std::string Summary(const Server& server, const v1::ListModelStatusResponse& models) {
  int64_t resident_bytes = 0, host_bytes = 0;
  for (const v1::ModelStatus& model : models.models()) {
    resident_bytes += model.resident_bytes();
    host_bytes += model.host_bytes();
  }
  return absl::StrCat(Wrap(absl::StrCat(server.http.Url(), ": ", Counted(models.models_size(), "model"), ", ",
                                        BytesText(resident_bytes), " of device memory, ",
                                        BytesText(host_bytes), " of host memory"),
                           OutputColumns(), 2),
                      "\n\n");
}

// Until Ctrl-C, or for that many times.
absl::StatusOr<int> Watch(const ModelsOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  const InterruptScope interrupts;
  v1::ListModelStatusResponse before;
  MonotonicTime asked_before;
  for (int32_t i = 0; options.count == 0 || i < options.count; ++i) {
    if (i > 0) poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(options.interval)));
    if (*InterruptScope::flag()) break;
    ASSIGN_OR_RETURN(v1::ListModelStatusResponse models, ListModelStatus(server, kCallTimeout));
    const MonotonicTime asked = MonotonicNow();
    const std::string screen = absl::StrCat(
        IsTerminal(STDOUT_FILENO) ? kNewScreen : "", Summary(server, models),
        ModelTable(models, OutputColumns(), &before, asked - asked_before), "\n",
        i > 0 ? SchedulingTable(models, before, asked - asked_before, OutputColumns()) + "\n" : "");
    if (fputs(screen.c_str(), stdout) < 0 || fflush(stdout) != 0) return kServerError;
    before = std::move(models);
    asked_before = asked;
  }
  return kOk;
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

int RunTop(const std::vector<std::string>& args) {
  ModelsOptions o;
  const FlagTable table = {
      .program = "somnus top",
      .usage = "somnus top [flags]",
      .about =
          "Shows what the models are doing, again and again until Ctrl-C: as somnus models, and how many\n"
          "tokens of prompts and of output each computes in a second. Below that, since the last look: "
          "sequences\n"
          "preempted in a second, blocks swapped out, swapped in and copied for forks, admissions refused "
          "for\n"
          "the watermark alone, which share of prompt tokens was cached, how long requests waited in the "
          "queue,\n"
          "which share of the tokens guessed by speculative decoding was right, and why sequences were "
          "preempted.",
      .groups = {
          {"Flags",
           {Flag::Time("interval", &o.interval, absl::Milliseconds(100), absl::Hours(1), "between two looks"),
            Flag::Int("count", &o.count, 0, 1 << 30, "how many looks; 0: until Ctrl-C")}},
          ServerFlags(&o.server)}};
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(Watch(o));
}

}  // namespace somnus::cli
