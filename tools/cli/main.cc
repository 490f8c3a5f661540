// somnus: the command line.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/commands.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

struct Entry {
  const Command& (*command)();
  int (*run)(const std::vector<std::string>&);
};

constexpr Entry kEntries[] = {{ServeCommand, RunServe},       {ChatCommand, RunChat},
                              {GenerateCommand, RunGenerate}, {StatusCommand, RunStatus},
                              {SleepCommand, RunSleep},       {WakeUpCommand, RunWakeUp}};

std::string Help() {
  std::string text =
      "somnus: serves large language models with one coordinator and N workers.\n\nusage: somnus COMMAND "
      "[flags]\n\n";
  for (const Entry& entry : kEntries) {
    absl::StrAppendFormat(&text, "  %-10s %s\n", entry.command().name, entry.command().summary);
  }
  absl::StrAppend(
      &text,
      "\nA first conversation:\n"
      "  somnus serve SmolLM2-135M-Instruct.Q4_1.gguf --workers=local:2    (in one terminal)\n"
      "  somnus chat                                                       (in another)\n"
      "\n`somnus COMMAND --help` explains a command.\n"
      "Exit codes: 0 done, 1 the server answered with an error, 2 wrong usage, 3 no server there.\n");
  return text;
}

int UnknownCommand(const std::string& name) {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.push_back(entry.command().name);
  const std::string nearest = Nearest(name, names);
  return Fail(absl::InvalidArgumentError(absl::StrCat(
      "unknown command '", name, "'", nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)"),
      "; see somnus --help")));
}

int Main(int argc, char** argv) {
  signal(SIGPIPE, SIG_DFL);
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) {
    fputs(Help().c_str(), stderr);
    return kUsage;
  }
  const auto is_help = [](const std::string& arg) { return arg == "--help" || arg == "-h" || arg == "help"; };
  if (is_help(args[0]) && args.size() == 1) {
    fputs(Help().c_str(), stdout);
    return kOk;
  }
  const bool help_first = is_help(args[0]);
  const std::string name = WithHyphens(args[help_first ? 1 : 0]);
  for (const Entry& entry : kEntries) {
    if (entry.command().name != name) continue;
    const std::vector<std::string> rest(args.begin() + 1, args.end());
    const bool help = help_first || std::any_of(rest.begin(), rest.end(), [](const std::string& arg) {
                        return arg == "--help" || arg == "-h";
                      });
    // The coordinator knows its own flags best.
    if (entry.run == RunServe) return entry.run(help ? std::vector<std::string>{"--help"} : rest);
    if (!help) return entry.run(rest);
    fputs(HelpText(entry.command()).c_str(), stdout);
    return kOk;
  }
  return UnknownCommand(name);
}

}  // namespace
}  // namespace somnus::cli

int main(int argc, char** argv) { return somnus::cli::Main(argc, argv); }
