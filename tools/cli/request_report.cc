#include "tools/cli/request_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "tools/cli/openai.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"
#include "tools/http/json_fields.h"
#include "tools/http/percent_encoded.h"

namespace somnus::cli {
namespace {

using Json = nlohmann::json;

constexpr int kUnauthorized = 401;
constexpr absl::Duration kReadTimeout = absl::Seconds(10);  // these answers wait for nobody

double NumberAt(const Json& object, const char* key, double otherwise) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

int64_t CountAt(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

const Json& ListAt(const Json& object, const char* key) {
  static const Json kNone = Json::array();
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_array() ? *found : kNone;
}

absl::StatusOr<Json> Read(const Server& server, const absl::StatusOr<HttpResponse>& response) {
  RETURN_IF_ERROR(response.status());
  if (response->status == kUnauthorized)
    return absl::FailedPreconditionError(
        absl::StrCat(server.admin.ToString(),
                     server.admin_api_key.empty() ? " requires an API key" : " refuses this API key",
                     " (--admin-api-key or SOMNUS_ADMIN_API_KEY)"));
  if (response->status != 200) return absl::InternalError(ErrorMessage(*response));
  Json json = Json::parse(response->body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("the server's answer is not JSON");
  return json;
}

RequestRow ReadRow(const Json& json) {
  RequestRow row;
  row.id = StringAt(json, "request_id");
  row.model = StringAt(json, "model");
  row.user = StringAt(json, "user");
  row.state = StringAt(json, "state");
  row.finish_reason = StringAt(json, "finish_reason");
  row.received = NumberAt(json, "received", 0);
  row.age_s = NumberAt(json, "age_s", 0);
  row.queue_s = NumberAt(json, "queue_s", -1);
  row.ttft_s = NumberAt(json, "ttft_s", -1);
  row.choices = CountAt(json, "num_choices");
  row.prompt_tokens = CountAt(json, "num_prompt_tokens");
  row.output_tokens = CountAt(json, "num_output_tokens");
  row.max_tokens = CountAt(json, "max_tokens");
  row.steps = CountAt(json, "num_steps");
  row.preemptions = CountAt(json, "num_preemptions");
  return row;
}

std::string TimeText(double unix_s, absl::TimeZone zone) {
  return absl::FormatTime("%H:%M:%E3S", absl::FromUnixMicros(static_cast<int64_t>(unix_s * 1e6)), zone);
}

// The words of an event for people.
std::string EventText(const RequestEvent& event) {
  std::string text = Printable(event.event);
  std::replace(text.begin(), text.end(), '_', ' ');
  if (event.count > 1) absl::StrAppend(&text, " (", event.count, " times)");
  if (!event.detail.empty()) absl::StrAppend(&text, ": ", Printable(event.detail));
  return text;
}

std::string Headline(const RequestRow& row) {
  std::string text = absl::StrCat(Printable(row.id), ", ", Printable(row.model));
  if (!row.user.empty()) absl::StrAppend(&text, ", user ", Printable(row.user));
  if (row.choices > 1) absl::StrAppend(&text, ", ", row.choices, " choices");
  if (row.state == "ended")
    return absl::StrFormat("%s: ended (%s) after %.3f s", text, Printable(row.finish_reason), row.age_s);
  return absl::StrFormat("%s: %s, %.3f s after it came", text, Printable(row.state), row.age_s);
}

// The numbers of a request in a sentence.
std::string Summary(const RequestRow& row) {
  std::vector<std::string> parts = {
      absl::StrCat(Counted(row.prompt_tokens, "token"), " of prompt"),
      absl::StrCat(row.output_tokens, " of at most ", row.max_tokens * std::max<int64_t>(1, row.choices),
                   " of output")};
  if (row.queue_s >= 0) parts.push_back(absl::StrFormat("%.3f s in the queue", row.queue_s));
  if (row.queue_s < 0) parts.push_back("not scheduled yet");
  if (row.ttft_s >= 0) parts.push_back(absl::StrFormat("first token after %.3f s", row.ttft_s));
  const double decode_s = row.age_s - row.ttft_s;
  if (row.ttft_s >= 0 && row.output_tokens > 1 && decode_s > 0)
    parts.push_back(absl::StrFormat("then %.1f tokens a second", (row.output_tokens - 1) / decode_s));
  if (row.steps > 0) parts.push_back(absl::StrCat("computed in ", Counted(row.steps, "step")));
  if (row.preemptions > 0) parts.push_back(absl::StrCat("preempted ", Counted(row.preemptions, "time")));
  return absl::StrJoin(parts, ", ");
}

}  // namespace

absl::StatusOr<RequestList> FetchRequests(const Server& server, const RequestQuestion& question) {
  std::string path = absl::StrCat("/requests?state=", question.state, "&sort=", question.sort,
                                  "&users_sort=", question.users_sort, "&limit=", question.limit);
  if (!question.match.empty()) absl::StrAppend(&path, "&match=", PercentEncoded(question.match));
  if (!question.model.empty()) absl::StrAppend(&path, "&model=", PercentEncoded(question.model));
  ASSIGN_OR_RETURN(const Json json, Read(server, server.AdminClient(kReadTimeout).Get(path)));
  return ReadRequestList(json);
}

absl::StatusOr<Json> FetchRequest(const Server& server, const std::string& id) {
  return Read(server, server.AdminClient(kReadTimeout).Get(absl::StrCat("/requests/", PercentEncoded(id))));
}

absl::StatusOr<int> AbortRequests(const Server& server, const std::string& model,
                                  const std::vector<std::string>& ids) {
  std::string path = "/abort_requests";
  if (!model.empty()) absl::StrAppend(&path, "?model=", PercentEncoded(model));
  const std::string body = Json{{"request_ids", ids}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  ASSIGN_OR_RETURN(const Json json, Read(server, server.AdminClient(kReadTimeout).Post(path, body)));
  return IntAt(json, "aborted");
}

RequestList ReadRequestList(const Json& json) {
  RequestList list;
  if (const auto counts = json.find("counts"); counts != json.end() && counts->is_object()) {
    for (const auto& [state, count] : counts->items()) list.counts[state] = CountAt(*counts, state.c_str());
  }
  for (const Json& user : ListAt(json, "users"))
    list.users.push_back({StringAt(user, "user"), CountAt(user, "num_open"), CountAt(user, "num_waiting"),
                          CountAt(user, "num_output_tokens")});
  for (const Json& row : ListAt(json, "data")) list.rows.push_back(ReadRow(row));
  return list;
}

RequestStory ReadRequestStory(const Json& json) {
  RequestStory story;
  story.row = ReadRow(json);
  for (const Json& event : ListAt(json, "events")) {
    story.events.push_back({StringAt(event, "event"), StringAt(event, "detail"), NumberAt(event, "at", 0),
                            std::max<int64_t>(1, CountAt(event, "count"))});
  }
  story.dropped_events = CountAt(json, "num_dropped_events");
  return story;
}

std::string StoryText(const RequestStory& story, absl::TimeZone zone, int columns) {
  constexpr int kEventIndent = 26;
  std::string text = absl::StrCat(Wrap(Headline(story.row), columns, 2), "\n");
  for (const RequestEvent& event : story.events) {
    const std::string line = absl::StrFormat("  %s  +%7.3f s  %s", TimeText(event.at, zone),
                                             event.at - story.row.received, EventText(event));
    absl::StrAppend(&text, Wrap(line, columns, kEventIndent), "\n");
  }
  if (story.dropped_events > 0)
    absl::StrAppend(&text, "  and ", Counted(story.dropped_events, "further event"), "\n");
  absl::StrAppend(&text, Wrap(Summary(story.row), columns, 2), "\n");
  return text;
}

std::string LogLine(const RequestRow& row, absl::TimeZone zone) {
  std::string line = absl::StrFormat(
      "%s  %s  %s  %s  %d+%d tokens  %.3f s", TimeText(row.received + row.age_s, zone), Printable(row.id),
      Printable(row.model), Printable(row.finish_reason), row.prompt_tokens, row.output_tokens, row.age_s);
  if (row.queue_s >= 0) absl::StrAppendFormat(&line, "  queue %.3f s", row.queue_s);
  if (row.ttft_s >= 0) absl::StrAppendFormat(&line, "  first %.3f s", row.ttft_s);
  if (row.preemptions > 0) absl::StrAppend(&line, "  preempted ", row.preemptions);
  if (!row.user.empty()) absl::StrAppend(&line, "  user ", Printable(row.user));
  return line;
}

}  // namespace somnus::cli
