// The command run: a server for one question or one conversation.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/monotonic.h"
#include "base/start_limits.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/openai.h"
#include "tools/cli/programs.h"
#include "tools/cli/server_process.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

struct RunOptions {
  int32_t workers = 1;
  std::string system;
  bool raw = false;
};

// Own flags that become flags of chat or generate, in the same words.
class Forwarded {
 public:
  Flag Take(Flag flag) {
    flag.set = [this, name = flag.name, set = std::move(flag.set)](const std::string& value) {
      const absl::Status status = set(value);
      if (status.ok()) args_.push_back(absl::StrCat("--", name, "=", value));
      return status;
    };
    return flag;
  }
  const std::vector<std::string>& args() const { return args_; }

 private:
  std::vector<std::string> args_;
};

FlagTable RunFlags(RunOptions* o, SamplingOptions* sampling, Forwarded* forwarded) {
  FlagGroup request = SamplingFlags(sampling);
  std::erase_if(request.flags, [](const Flag& flag) { return flag.name == "model"; });
  request.flags.push_back(Flag::Text("system", &o->system, "system message of the conversation"));
  for (Flag& flag : request.flags) flag = forwarded->Take(std::move(flag));
  return {
      .program = "somnus run",
      .usage = "somnus run MODEL [PROMPT] [flags] [-- flags of the server]",
      .about =
          "Starts a server for MODEL (a path, or a name of somnus list), answers PROMPT or standard input,\n"
          "and ends the server; on a terminal and without a PROMPT, once the conversation is over. The\n"
          "server is this command's own: it has free ports of this host, and keys that nobody else knows.\n\n"
          "  somnus run smollm2 'Why is the sky blue?'\n"
          "  somnus run smollm2 -- --max-model-len=1024",
      .groups = {{"Flags",
                  {Flag::Int("workers", &o->workers, 1, 64, "local workers"),
                   Flag::Switch("raw", &o->raw,
                                "continue the prompt as it is, without a chat template: for base models")}},
                 std::move(request)},
      .max_positional = std::numeric_limits<size_t>::max()};
}

// "loading smollm2, 3 s" on a terminal, in a line that goes away.
class WaitLine {
 public:
  explicit WaitLine(absl::string_view model) : model_(Printable(NameOf(model))) {}
  ~WaitLine() {
    if (is_shown_) fputs("\r\033[K", stderr);
  }
  void Show() {
    if (!UnderstandsEscapes(STDERR_FILENO)) return;
    is_shown_ = true;
    const std::string line =
        absl::StrFormat("loading %s, %.0f s", model_, absl::ToDoubleSeconds(MonotonicNow() - start_));
    // A line that the terminal breaks would not go away whole.
    absl::FPrintF(stderr, "\r\033[K%s", Cut(line, std::max(1, Columns(STDERR_FILENO, 80) - 1)));
    fflush(stderr);
  }

 private:
  // The last part of a path, which may end in slashes.
  static std::string NameOf(absl::string_view model) {
    while (model.size() > 1 && model.back() == '/') model.remove_suffix(1);
    return std::string(model.substr(model.find_last_of('/') + 1));
  }

  const std::string model_;
  const MonotonicTime start_ = MonotonicNow();
  bool is_shown_ = false;
};

absl::StatusOr<int> AwaitServer(const std::string& model, ServerProcess* server) {
  const InterruptScope interrupts;
  WaitLine line(model);
  return server->AwaitReady(InterruptScope::flag(), [&line] { line.Show(); });
}

absl::StatusOr<int> RunModel(const RunOptions& options, const std::vector<std::string>& words,
                             const std::vector<std::string>& server_flags,
                             std::vector<std::string> chat_flags) {
  RETURN_IF_ERROR(CheckStartLimits({.descriptors = 16, .threads = 2}));
  ASSIGN_OR_RETURN(const std::string coordinator, CoordinatorPath());
  std::vector<std::string> args = {words[0], absl::StrCat("--workers=local:", options.workers)};
  args.insert(args.end(), server_flags.begin(), server_flags.end());
  ASSIGN_OR_RETURN(const std::unique_ptr<ServerProcess> server, ServerProcess::Start(coordinator, args));
  const absl::StatusOr<int> port = AwaitServer(words[0], server.get());
  if (absl::IsCancelled(port.status())) return FailInterrupted();
  RETURN_IF_ERROR(port.status());
  setenv("SOMNUS_API_KEY", server->api_key().c_str(), 1);
  setenv("SOMNUS_ADMIN_API_KEY", server->admin_api_key().c_str(), 1);
  chat_flags.push_back(absl::StrCat("--url=http://127.0.0.1:", *port));
  chat_flags.push_back("--");  // what follows are words, also words with dashes
  chat_flags.insert(chat_flags.end(), words.begin() + 1, words.end());
  return options.raw ? RunGenerate(chat_flags) : RunChat(chat_flags);
}

}  // namespace

int RunRun(const std::vector<std::string>& args) {
  const auto dashes = std::find(args.begin(), args.end(), "--");
  const std::vector<std::string> own(args.begin(), dashes);
  const std::vector<std::string> server_flags(dashes == args.end() ? dashes : dashes + 1, args.end());
  RunOptions options;
  SamplingOptions sampling;
  Forwarded forwarded;
  std::vector<std::string> words;
  if (const auto code = ParseCommand(RunFlags(&options, &sampling, &forwarded), own, &words)) return *code;
  if (words.empty()) return Fail(absl::InvalidArgumentError("which model? usage: somnus run MODEL [PROMPT]"));
  for (const std::string& flag : server_flags) {
    if (absl::StartsWith(flag, "--ssl"))
      return Fail(absl::InvalidArgumentError(
          absl::StrCat(flag.substr(0, flag.find('=')), ": a server of this command's own has no TLS")));
  }
  if (options.raw && !options.system.empty())
    return Fail(absl::InvalidArgumentError("--system: is for conversations, and --raw has none"));
  return ExitCode(RunModel(options, words, server_flags, forwarded.args()));
}

}  // namespace somnus::cli
