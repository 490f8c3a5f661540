// somnus: the command line.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/flags.h"
#include "base/version.h"
#include "tools/cli/commands.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

struct Entry {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>&);
};

constexpr Entry kEntries[] = {
    {"serve", "serve a model: one coordinator, N workers", RunServe},
    {"run", "one answer or one conversation, with a server of its own", RunRun},
    {"list", "the models that have a name", RunList},
    {"chat", "talk to the served model", RunChat},
    {"generate", "continue a text", RunGenerate},
    {"status", "what the server and its workers are doing", RunStatus},
    {"models", "which models are served, and what each is doing; add, remove: names of models", RunModels},
    {"top", "a screen of models, ranks and requests, with keys to act", RunTop},
    {"logs", "the requests that ended last", RunLogs},
    {"explain", "what has happened to a request", RunExplain},
    {"bench", "load on a server, and what its clients see", RunBench},
    {"sleep", "give the device memory back, keep the processes", RunSleep},
    {"wake-up", "take the memory again and serve", RunWakeUp},
    {"pause", "compute nothing, keep the memory", RunPause},
    {"resume", "end a pause", RunResume},
    {"reload-weights", "read the weights anew, or others", RunReloadWeights},
    {"abort-call", "end a sleep, a wake-up or an update that does not end", RunAbortCall},
    {"reset-prefix-cache", "forget the prompts that were computed before", RunResetPrefixCache},
    {"prefixes", "prompts that stay in the prefix cache: list, pin, unpin", RunPrefixes},
    {"revive", "bring up new workers for a model that has failed", RunRevive},
    {"roll", "restart the workers, one replica at a time", RunRoll},
    {"stop", "end the server and its workers", RunStop},
    {"doctor", "what this host is good for, and what would be chosen on it", RunDoctor},
    {"completions", "words for bash, zsh or fish to complete", RunCompletions}};

std::string Help() {
  std::string text =
      "somnus: serves large language models with one coordinator and N workers.\n\nusage: somnus COMMAND "
      "[flags]\n\n";
  for (const Entry& entry : kEntries) absl::StrAppendFormat(&text, "  %-18s %s\n", entry.name, entry.summary);
  absl::StrAppend(&text,
                  "\nA first conversation:\n"
                  "  somnus serve SmolLM2-135M-Instruct.Q4_1.gguf --workers=local:2    (in one terminal)\n"
                  "  somnus chat                                                       (in another)\n"
                  "\n`somnus COMMAND --help` explains a command; --version prints the version. Every command "
                  "finds the server by\n"
                  "--url, else by SOMNUS_URL, else at http://127.0.0.1:8000.\n"
                  "Exit codes: 0 done, 1 the server answered with an error, 2 wrong usage, 3 no server "
                  "there, 130 Ctrl-C.\n");
  return text;
}

// The commands of other programs that serve models, and ours for the same.
std::string KnownElsewhere(const std::string& name) {
  constexpr std::pair<const char*, const char*> kWords[] = {
      {"pull", "nothing is downloaded: somnus models add PATH gives a model on this host a name"},
      {"create", "somnus models add PATH gives a model on this host a name"},
      {"ps", "somnus models lists what is served"},
      {"ls", "somnus list lists the models that have a name"},
      {"rm", "somnus models remove NAME removes a name, and no file"},
      {"show", "somnus doctor MODEL describes a model"},
      {"start", "somnus serve MODEL starts a server"},
  };
  for (const auto& [word, ours] : kWords) {
    if (name == word) return ours;
  }
  return "";
}

int UnknownCommand(const std::string& name) {
  if (const std::string ours = KnownElsewhere(name); !ours.empty())
    return Fail(absl::InvalidArgumentError(absl::StrCat("unknown command '", name, "': ", ours)));
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.push_back(entry.name);
  const std::string nearest = NearestName(name, names);
  return Fail(absl::InvalidArgumentError(
      nearest.empty() ? absl::StrCat("unknown command '", name, "'; see somnus --help")
                      : absl::StrCat("unknown command '", name, "': did you mean ", nearest, "?")));
}

int Main(std::vector<std::string> args) {
  signal(SIGPIPE, SIG_DFL);
  setenv("GRPC_VERBOSITY", "NONE", 0);  // our own errors are one line
  if (args.empty()) {
    fputs(Help().c_str(), stderr);
    return kUsage;
  }
  const bool help = args[0] == "--help" || args[0] == "-h" || args[0] == "help";
  if (args[0] == "--version") {
    printf("somnus %s\n", kVersion);
    return kOk;
  }
  if (args[0] == "--help=commands") {  // for completions and the man page
    fputs(CommandNames().c_str(), stdout);
    return kOk;
  }
  if (help && args.size() == 1) {
    fputs(Help().c_str(), stdout);
    return kOk;
  }
  // `somnus help chat` is `somnus chat --help`.
  if (help) args = {args[1], "--help"};
  const std::string name = absl::StrReplaceAll(args[0], {{"_", "-"}});
  const int code = RunCommand(name, {args.begin() + 1, args.end()});
  return code < 0 ? UnknownCommand(name) : code;
}

}  // namespace

int RunCommand(const std::string& name, const std::vector<std::string>& args) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.run(args);
  }
  return -1;
}

std::string CommandNames() {
  std::string text;
  for (const Entry& entry : kEntries) absl::StrAppend(&text, entry.name, "\t", entry.summary, "\n");
  return text;
}

std::optional<int> ParseCommand(const FlagTable& table, const std::vector<std::string>& args,
                                std::vector<std::string>* positional) {
  absl::StatusOr<ParsedArgs> parsed = ParseArgs(table, args);
  if (!parsed.ok()) return Fail(parsed.status());
  if (parsed->help || parsed->help_all)
    return fputs(HelpText(table).c_str(), stdout) < 0 ? kServerError : kOk;
  if (parsed->help_flags) return fputs(FlagListText(table).c_str(), stdout) < 0 ? kServerError : kOk;
  if (parsed->version) return printf("somnus %s\n", kVersion) < 0 ? kServerError : kOk;
  if (positional != nullptr) *positional = std::move(parsed->positional);
  return std::nullopt;
}

}  // namespace somnus::cli

int main(int argc, char** argv) {
  const int code = somnus::cli::Main({argv + 1, argv + argc});
  const bool is_written = fflush(stdout) == 0 && ferror(stdout) == 0;
  return is_written ? code : somnus::cli::Fail(absl::DataLossError("standard output cannot be written"));
}
