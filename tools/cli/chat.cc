#include <stdio.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/openai.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

using nlohmann::json;

class Conversation {
 public:
  Conversation(const HttpClient& client, json request, std::string system)
      : client_(client), request_(std::move(request)), system_(std::move(system)) {
    Reset();
  }

  void Reset() {
    messages_ = json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }
  void SetSystem(std::string system) {
    system_ = std::move(system);
    Reset();
  }

  // Asks, writes the answer, remembers both. A question that failed is not remembered.
  absl::StatusOr<Answer> Ask(const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    json request = request_;
    request["messages"] = messages_;
    absl::StatusOr<Answer> answer = StreamAnswer(client_, "/v1/chat/completions", std::move(request));
    if (!answer.ok()) {
      messages_.erase(messages_.size() - 1);
      return answer;
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer->text}});
    return answer;
  }

 private:
  const HttpClient& client_;
  const json request_;
  std::string system_;
  json messages_;
};

void PrintUsage(const Answer& answer, absl::Duration took) {
  if (!IsTerminal(STDOUT_FILENO)) return;
  const double seconds = absl::ToDoubleSeconds(took);
  std::string line = absl::StrFormat("[%d tokens in %.1f s", answer.completion_tokens, seconds);
  if (answer.interrupted) line = "[interrupted";
  if (answer.finish_reason == "length") line += ", cut by max-tokens or the context";
  printf("%s\n", Styled(STDOUT_FILENO, Style::kDim, line + "]").c_str());
}

// Answers false when the conversation is over.
bool HandleSlash(const std::string& line, Conversation* conversation) {
  if (line == "/exit" || line == "/quit") return false;
  if (line == "/reset") {
    conversation->Reset();
    puts("(a new conversation)");
  } else if (line.starts_with("/system")) {
    conversation->SetSystem(std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(7))));
    puts("(a new conversation under this system message)");
  } else {
    puts("/reset  forget the conversation    /system TEXT  set the system message    /exit  or Ctrl-D");
  }
  return true;
}

int Converse(Conversation* conversation) {
  puts(Styled(STDOUT_FILENO, Style::kDim, "Ctrl-C stops an answer, Ctrl-D ends, /help lists commands.")
           .c_str());
  int code = kOk;
  while (true) {
    fputs(Styled(STDOUT_FILENO, Style::kGreen, "> ").c_str(), stdout);
    fflush(stdout);
    std::string line;
    if (!std::getline(std::cin, line)) break;
    line = std::string(absl::StripAsciiWhitespace(line));
    if (line.empty()) continue;
    if (line[0] == '/') {
      if (!HandleSlash(line, conversation)) break;
      continue;
    }
    const absl::Time start = absl::Now();
    const absl::StatusOr<Answer> answer = conversation->Ask(line);
    if (answer.ok()) fputs("\n", stdout);
    code = answer.ok() ? kOk : Fail(answer.status());
    if (code == kCannotConnect) return code;
    if (answer.ok()) PrintUsage(*answer, absl::Now() - start);
  }
  fputs("\n", stdout);
  return code;
}

absl::StatusOr<int> Chat(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const Args args, Args::Parse(ChatCommand(), argv));
  ASSIGN_OR_RETURN(const HttpClient client, ClientFromFlags(args));
  json request = json::object();
  RETURN_IF_ERROR(AddSampling(args, &request));
  Conversation conversation(client, std::move(request), args.Get("system"));
  std::string question = absl::StrJoin(args.positional(), " ");
  if (question.empty()) {
    if (IsTerminal(STDIN_FILENO)) return Converse(&conversation);
    ASSIGN_OR_RETURN(question, ReadStdin());
    question = std::string(absl::StripTrailingAsciiWhitespace(question));
  }
  if (question.empty()) return absl::InvalidArgumentError("nothing to ask: give a message, or pipe one in");
  const absl::StatusOr<Answer> answer = conversation.Ask(question);
  if (!answer.ok()) return Fail(answer.status());
  fputs("\n", stdout);
  return answer->interrupted ? kServerError : kOk;
}

}  // namespace

const Command& ChatCommand() {
  static const Command* command = [] {
    auto* c = new Command{
        "chat", "somnus chat [MESSAGE] [flags]", "talk to the served model",
        "With a MESSAGE (or one piped in) writes the answer and ends; without, on a terminal, keeps\n"
        "a conversation going. The answer is written as it comes.\n\n"
        "  somnus chat\n"
        "  somnus chat --temperature 0 'What is the capital of France?'\n"
        "  git diff | somnus chat --system 'Summarize this patch.'",
        HttpFlags()};
    for (Flag& flag : SamplingFlags()) c->flags.push_back(std::move(flag));
    c->flags.push_back({"system", "TEXT", "system message of the conversation"});
    return c;
  }();
  return *command;
}

int RunChat(const std::vector<std::string>& args) {
  const absl::StatusOr<int> code = Chat(args);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace somnus::cli
