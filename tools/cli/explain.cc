// The commands explain and logs: what has happened to requests.
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/request_report.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

constexpr int kFollowMs = 1000;
constexpr int kMostListed = 1000;

struct ExplainOptions {
  ServerOptions server;
  std::string model;
  bool json = false;
  bool follow = false;
  int32_t limit = 20;
};

absl::StatusOr<int> Explain(const ExplainOptions& options, const std::string& id) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const nlohmann::json json, FetchRequest(server, id));
  const std::string text = options.json
                               ? absl::StrCat(json.dump(-1, ' ', /*ensure_ascii=*/true), "\n")
                               : StoryText(ReadRequestStory(json), absl::LocalTimeZone(), OutputColumns());
  return fputs(text.c_str(), stdout) < 0 ? kServerError : kOk;
}

// The requests of the last look, by id and time: the server lists the same requests again, and later ones.
using Seen = std::set<std::pair<std::string, double>>;

// Writes the lines of the `most` requests that ended last, the latest one at the end.
absl::Status WriteEnded(const Server& server, const ExplainOptions& options, size_t most, Seen* seen) {
  RequestQuestion question;
  question.state = "ended";
  question.model = options.model;
  question.limit = options.follow ? kMostListed : options.limit;
  ASSIGN_OR_RETURN(const RequestList list, FetchRequests(server, question));
  Seen now;
  for (size_t left = list.rows.size(); left-- > 0;) {
    const RequestRow& row = list.rows[left];
    const auto key = std::make_pair(row.id, row.received);
    now.insert(key);
    if (left < most && seen->count(key) == 0) puts(LogLine(row, absl::LocalTimeZone()).c_str());
  }
  *seen = std::move(now);
  return fflush(stdout) == 0 ? absl::OkStatus() : absl::InternalError("stdout cannot be written");
}

absl::StatusOr<int> Logs(const ExplainOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  Seen seen;
  RETURN_IF_ERROR(WriteEnded(server, options, static_cast<size_t>(options.limit), &seen));
  if (seen.empty()) fputs("no request has ended yet (--request-history says how many are kept)\n", stderr);
  if (!options.follow) return kOk;
  const InterruptScope interrupts;
  while (!*InterruptScope::flag()) {
    poll(nullptr, 0, kFollowMs);
    if (*InterruptScope::flag()) break;
    RETURN_IF_ERROR(WriteEnded(server, options, kMostListed, &seen));
  }
  return kOk;
}

}  // namespace

int RunExplain(const std::vector<std::string>& args) {
  ExplainOptions o;
  const FlagTable table = {.program = "somnus explain",
                           .usage = "somnus explain REQUEST_ID [flags]",
                           .about =
                               "Says what has happened to a request, by the id of its response (cmpl-..., "
                               "chatcmpl-...): when it was\n"
                               "queued, scheduled, preempted and why, interrupted by a failure of the "
                               "workers, and how it ended. The\n"
                               "server knows open requests and those that ended last (--request-history).",
                           .groups = {{"Flags", {Flag::Switch("json", &o.json, "the server's own answer")}},
                                      ServerFlags(&o.server)},
                           .max_positional = 1};
  std::vector<std::string> ids;
  if (const auto code = ParseCommand(table, args, &ids)) return *code;
  if (ids.empty() || ids[0].empty())
    return Fail(absl::InvalidArgumentError("which request? somnus logs and somnus top show their ids"));
  return ExitCode(Explain(o, ids[0]));
}

int RunLogs(const std::vector<std::string>& args) {
  ExplainOptions o;
  const FlagTable table = {
      .program = "somnus logs",
      .usage = "somnus logs [flags]",
      .about =
          "A line about each of the requests that ended last: when, its id, model, finish reason, tokens of\n"
          "prompt and output, how long it took, and the time in the queue and to the first token.",
      .groups = {{"Flags",
                  {Flag::Switch("follow", &o.follow, "goes on with requests that end later, until Ctrl-C"),
                   Flag::Int("limit", &o.limit, 1, kMostListed, "how many that ended before"),
                   Flag::Text("model", &o.model, "of this model alone").Shows("NAME")}},
                 ServerFlags(&o.server)}};
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(Logs(o));
}

}  // namespace somnus::cli
