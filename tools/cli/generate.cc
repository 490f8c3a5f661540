#include <stdio.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/openai.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

absl::StatusOr<int> Generate(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const Args args, Args::Parse(GenerateCommand(), argv));
  ASSIGN_OR_RETURN(const HttpClient client, ClientFromFlags(args));
  nlohmann::json request = nlohmann::json::object();
  RETURN_IF_ERROR(AddSampling(args, &request));
  if (args.Has("ignore-eos")) request["ignore_eos"] = true;
  std::string prompt = absl::StrJoin(args.positional(), " ");
  if (prompt.empty() && !IsTerminal(STDIN_FILENO)) {
    ASSIGN_OR_RETURN(prompt, ReadStdin());
  }
  if (prompt.empty()) return absl::InvalidArgumentError("no prompt: give one, or pipe one in");
  request["prompt"] = prompt;
  if (args.Has("echo")) WriteModelText(prompt);
  const absl::StatusOr<Answer> answer = StreamAnswer(client, "/v1/completions", std::move(request));
  if (!answer.ok()) return Fail(answer.status());
  fputs("\n", stdout);
  return answer->interrupted ? kServerError : kOk;
}

}  // namespace

const Command& GenerateCommand() {
  static const Command* command = [] {
    auto* c = new Command{
        "generate", "somnus generate [PROMPT] [flags]", "continue a text",
        "Writes what the model makes of PROMPT (or of standard input), as it comes. No chat template\n"
        "is applied; see `somnus chat` for that.\n\n"
        "  somnus generate 'Once upon a time' --max-tokens 64 --temperature 0\n"
        "  somnus generate --max-tokens 32 --echo < prompt.txt",
        HttpFlags()};
    for (Flag& flag : SamplingFlags()) c->flags.push_back(std::move(flag));
    c->flags.push_back({"ignore-eos", "", "go on past the end-of-sequence token"});
    c->flags.push_back({"echo", "", "write the prompt first"});
    return c;
  }();
  return *command;
}

int RunGenerate(const std::vector<std::string>& args) {
  const absl::StatusOr<int> code = Generate(args);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace somnus::cli
