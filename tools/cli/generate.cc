#include <stdio.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/openai.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

struct GenerateOptions {
  ServerOptions server;
  SamplingOptions sampling;
  bool ignore_eos = false;
  bool echo = false;
};

FlagTable GenerateTable(GenerateOptions* o) {
  FlagGroup sampling = SamplingFlags(&o->sampling);
  sampling.flags.push_back(
      Flag::Switch("ignore-eos", &o->ignore_eos, "go on past the end-of-sequence token"));
  sampling.flags.push_back(Flag::Switch("echo", &o->echo, "write the prompt first"));
  return {.program = "somnus generate",
          .usage = "somnus generate [PROMPT] [flags]",
          .about =
              "Continues PROMPT (or standard input), and writes the text as it comes. No chat template is\n"
              "applied; see `somnus chat` for that.\n\n"
              "  somnus generate 'Once upon a time' --max-tokens 64 --temperature 0\n"
              "  somnus generate --max-tokens 32 --echo < prompt.txt",
          .groups = {ServerFlags(&o->server), std::move(sampling)},
          .max_positional = std::numeric_limits<size_t>::max()};
}

absl::StatusOr<int> Generate(const GenerateOptions& options, const std::vector<std::string>& words) {
  std::string prompt = absl::StrJoin(words, " ");
  if (prompt.empty() && !IsTerminal(STDIN_FILENO)) {
    ASSIGN_OR_RETURN(prompt, ReadStdin());
  }
  if (prompt.empty()) return absl::InvalidArgumentError("no prompt: give one, or pipe one in");
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  nlohmann::json request = {{"prompt", prompt}};
  AddSampling(options.sampling, &request);
  if (options.ignore_eos) request["ignore_eos"] = true;
  if (options.echo) WriteModelText(prompt);
  ASSIGN_OR_RETURN(const Answer answer, StreamAnswer(server, "/v1/completions", std::move(request)));
  fputs("\n", stdout);
  return answer.interrupted ? FailInterrupted() : kOk;
}

}  // namespace

int RunGenerate(const std::vector<std::string>& args) {
  GenerateOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommand(GenerateTable(&options), args, &words)) return *code;
  return ExitCode(Generate(options, words));
}

}  // namespace somnus::cli
