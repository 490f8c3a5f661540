#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/counted.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/line_editor.h"
#include "tools/cli/openai.h"
#include "tools/cli/question.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

using nlohmann::json;

class Conversation {
 public:
  Conversation(const Server& server, json request, std::string system)
      : server_(server), request_(std::move(request)), system_(std::move(system)) {
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

  // Sends the question, writes the answer on arrival, and keeps both in the conversation. A question without
  // an answer is not kept.
  absl::StatusOr<Answer> Ask(const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    MakeRoom();
    json request = request_;
    request["messages"] = messages_;
    absl::StatusOr<Answer> answer = StreamAnswer(server_, "/v1/chat/completions", std::move(request));
    if (!answer.ok() || (answer->interrupted && answer->text.empty())) {
      messages_.erase(messages_.size() - 1);
      return answer;
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer->text}});
    return answer;
  }

 private:
  // The messages of an exchange: a question and its answer.
  static constexpr size_t kExchange = 2;
  // The room left for an answer: a quarter of the context, or --max-tokens, up to half of the context.
  static constexpr int64_t kAnswerShare = 4, kLongestAnswerShare = 2;

  size_t NumExchanges() const { return (messages_.size() - (system_.empty() ? 1 : 2)) / kExchange; }

  int64_t AnswerTokens(int64_t context) const {
    const auto given = request_.find("max_tokens");
    if (given == request_.end()) return context / kAnswerShare;
    return std::min(given->get<int64_t>(), context / kLongestAnswerShare);
  }

  // Forgets exchanges from the beginning, and says so, until the rest and an answer fit into the model's
  // context. A question that does not fit alone is the server's to refuse.
  void MakeRoom() {
    size_t forgotten = 0;
    int64_t context = 0;
    while (NumExchanges() > 0) {
      const absl::StatusOr<ContextUse> use = CountTokens(server_, request_, messages_);
      if (!use.ok() || use->num_tokens + AnswerTokens(use->max_model_len) <= use->max_model_len) break;
      context = use->max_model_len;
      const auto first = messages_.begin() + (system_.empty() ? 0 : 1);
      messages_.erase(first, first + kExchange);
      ++forgotten;
    }
    if (forgotten == 0) return;
    puts(Styled(STDOUT_FILENO, Style::kDim,
                absl::StrCat("(the context of ", context,
                             " tokens is full: ", Counted(static_cast<int64_t>(forgotten), "exchange"),
                             " at the beginning ", forgotten == 1 ? "is" : "are", " forgotten)"))
             .c_str());
  }

  const Server& server_;
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

constexpr char kSlashCommands[] =
    "/reset        forget the conversation\n"
    "/system TEXT  set the system message\n"
    "/exit         or Ctrl-D: end\n"
    "A line that ends with \\ goes on with the next one, and what begins with \"\"\" to the next \"\"\".";

// Returns false when the conversation is over.
bool HandleSlash(const std::string& line, Conversation* conversation) {
  const std::string word = line.substr(0, line.find(' '));
  if (word == "/exit" || word == "/quit") return false;
  if (word == "/reset") {
    conversation->Reset();
    puts("(a new conversation)");
  } else if (word == "/system") {
    conversation->SetSystem(
        std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(word.size()))));
    puts("(a new conversation under this system message)");
  } else if (word == "/help") {
    puts(kSlashCommands);
  } else {
    const std::string nearest = NearestName(word, {"/reset", "/system", "/exit", "/quit", "/help"});
    puts(absl::StrCat("unknown command ", word, nearest.empty() ? "; /help lists them" : ": did you mean ",
                      nearest, nearest.empty() ? "" : "?")
             .c_str());
  }
  return true;
}

// Asks one question and shows its answer. An error ends the question, not the conversation.
void AskAndShow(const std::string& question, Conversation* conversation) {
  const MonotonicTime start = MonotonicNow();
  const absl::StatusOr<Answer> answer = conversation->Ask(question);
  if (!answer.ok()) {
    Fail(answer.status());
    return;
  }
  fputs("\n", stdout);
  PrintUsage(*answer, MonotonicNow() - start);
}

int Converse(Conversation* conversation) {
  puts(Styled(STDOUT_FILENO, Style::kDim, "Ctrl-C stops an answer, Ctrl-D ends, /help says more.").c_str());
  const InterruptScope interrupts;
  LineEditor editor("> ", HistoryPath());
  bool interrupted_before = false;
  while (true) {
    InterruptScope::Clear();
    std::string line;
    const LineEditor::Result result = ReadQuestion(&editor, &line);
    if (result == LineEditor::Result::kEnd ||
        (result == LineEditor::Result::kInterrupted && interrupted_before))
      break;
    interrupted_before = result == LineEditor::Result::kInterrupted;
    if (interrupted_before) {
      puts("\n(Ctrl-C again, or Ctrl-D, ends the conversation)");
      continue;
    }
    const absl::string_view command = absl::StripLeadingAsciiWhitespace(line);
    if (command.empty()) continue;
    if (command[0] != '/') {
      AskAndShow(line, conversation);
    } else if (!HandleSlash(std::string(command), conversation)) {
      return kOk;
    }
  }
  fputs("\n", stdout);
  return kOk;
}

struct ChatOptions {
  ServerOptions server;
  SamplingOptions sampling;
  std::string system;
};

FlagTable ChatTable(ChatOptions* o) {
  FlagGroup request = SamplingFlags(&o->sampling);
  request.flags.push_back(Flag::Text("system", &o->system, "system message of the conversation"));
  return {.program = "somnus chat",
          .usage = "somnus chat [MESSAGE] [flags]",
          .about =
              "With a MESSAGE (or one piped in) writes the answer and ends; without, on a terminal, keeps\n"
              "a conversation going. The answer is written as it comes.\n\n"
              "  somnus chat\n"
              "  somnus chat --temperature 0 'Tell me the capital of France.'\n"
              "  git diff | somnus chat --system 'Summarize this patch.'",
          .groups = {ServerFlags(&o->server), std::move(request)},
          .max_positional = std::numeric_limits<size_t>::max()};
}

absl::StatusOr<int> Chat(const ChatOptions& options, const std::vector<std::string>& words) {
  std::string message = absl::StrJoin(words, " ");
  const bool converse = message.empty() && IsTerminal(STDIN_FILENO);
  if (message.empty() && !converse) {
    ASSIGN_OR_RETURN(message, ReadStdin());
    message = std::string(absl::StripTrailingAsciiWhitespace(message));
    if (message.empty()) return absl::InvalidArgumentError("nothing to ask: give a message, or pipe one in");
  }
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  json request = json::object();
  AddSampling(options.sampling, &request);
  Conversation conversation(server, std::move(request), options.system);
  if (converse) return Converse(&conversation);
  ASSIGN_OR_RETURN(const Answer answer, conversation.Ask(message));
  fputs("\n", stdout);
  return answer.interrupted ? FailInterrupted() : kOk;
}

}  // namespace

int RunChat(const std::vector<std::string>& args) {
  ChatOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommand(ChatTable(&options), args, &words)) return *code;
  return ExitCode(Chat(options, words));
}

}  // namespace somnus::cli
