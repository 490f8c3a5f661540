#include "coordinator/operators/request_routes.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/http/query_string.h"
#include "coordinator/openai/request_history.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;
using State = RequestTrail::State;

constexpr size_t kDefaultLimit = 100, kMaxLimit = 1000, kMaxUsers = 20;
constexpr std::array<State, 4> kStates = {State::kWaiting, State::kRunning, State::kPreempted, State::kEnded};
constexpr std::array<absl::string_view, 6> kStateWords = {"open",    "all",       "waiting",
                                                          "running", "preempted", "ended"};
constexpr std::array<absl::string_view, 3> kSorts = {"age", "tokens", "wait"};
constexpr std::array<absl::string_view, 4> kUserSorts = {"open", "wait", "tokens", "name"};

struct Row {
  SharedTrail trail;
  RequestTrail::View view;
};

// The query of GET /requests.
struct Question {
  std::string state = "open";
  std::string match;  // a part of the id, or of the model's or the user's name; empty: all match
  std::string sort = "age", users_sort = "open";
  size_t limit = kDefaultLimit;

  bool Matches(const RequestTrail::Facts& facts) const {
    return match.empty() || absl::StrContains(facts.id, match) || absl::StrContains(facts.model, match) ||
           absl::StrContains(facts.user, match);
  }
  bool Wants(State one) const {
    if (state == "all") return true;
    if (state == "open") return one != State::kEnded;
    return state == TrailStateName(one);
  }
};

std::string LastOf(absl::string_view query, const char* name, const std::string& otherwise) {
  const std::vector<std::string> values = QueryValues(query, name);
  return values.empty() ? otherwise : values.back();
}

// An error names the parameter.
std::optional<ApiError> ReadQuestion(absl::string_view query, Question* question) {
  const auto known = [](const auto& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  question->state = LastOf(query, "state", question->state);
  if (!known(kStateWords, question->state))
    return BadRequest("state", "state must be open, waiting, running, preempted, ended or all");
  question->sort = LastOf(query, "sort", question->sort);
  if (!known(kSorts, question->sort)) return BadRequest("sort", "sort must be age, tokens or wait");
  question->users_sort = LastOf(query, "users_sort", question->users_sort);
  if (!known(kUserSorts, question->users_sort))
    return BadRequest("users_sort", "users_sort must be open, wait, tokens or name");
  question->match = LastOf(query, "match", "");
  const std::string limit = LastOf(query, "limit", "");
  if (limit.empty()) return std::nullopt;
  int64_t number;
  if (!absl::SimpleAtoi(limit, &number) || number < 0 || number > static_cast<int64_t>(kMaxLimit))
    return BadRequest("limit", absl::StrCat("limit must be a whole number from 0 to ", kMaxLimit));
  question->limit = static_cast<size_t>(number);
  return std::nullopt;
}

Json JsonSeconds(absl::Duration time) { return absl::ToDoubleMilliseconds(time) / 1000; }
Json UnixSeconds(absl::Time time) { return JsonSeconds(time - absl::UnixEpoch()); }
Json Since(absl::Time begin, absl::Time end) {
  return end == absl::InfinitePast() ? Json(nullptr) : JsonSeconds(end - begin);
}

// Clients' texts may have any bytes; the response replaces those that are no UTF-8.
HttpResponse Dumped(const Json& json) {
  return {200, "application/json", json.dump(-1, ' ', false, Json::error_handler_t::replace), {}};
}

Json RequestJson(const Row& row, absl::Time now) {
  const RequestTrail::Facts& facts = row.trail->facts();
  const RequestTrail::View& view = row.view;
  const absl::Time arrival = row.trail->arrival();
  return {{"request_id", facts.id},
          {"model", facts.model},
          {"user", facts.user},
          {"state", TrailStateName(view.state)},
          {"finish_reason", view.finish_reason.empty() ? Json(nullptr) : Json(view.finish_reason)},
          {"received", UnixSeconds(arrival)},
          {"age_s", JsonSeconds((view.state == State::kEnded ? view.ended : now) - arrival)},
          {"queue_s", Since(arrival, view.scheduled)},
          {"ttft_s", Since(arrival, view.first_token)},
          {"num_choices", facts.num_choices},
          {"priority", facts.priority},
          {"num_prompt_tokens", facts.prompt_tokens},
          {"num_output_tokens", view.output_tokens},
          {"max_tokens", facts.max_tokens},
          {"num_steps", view.num_steps},
          {"num_preemptions", view.num_preemptions}};
}

// The longest first. Waiting times are those of requests that are not scheduled yet.
void Sort(const std::string& by, std::vector<Row>* rows) {
  const auto weight = [&by](const Row& row) -> double {
    if (by == "tokens") return static_cast<double>(row.view.output_tokens);
    const double age = -absl::ToDoubleSeconds(row.trail->arrival() - absl::UnixEpoch());
    const bool waits =
        by == "wait" && row.view.scheduled == absl::InfinitePast() && row.view.state != State::kEnded;
    return waits ? age + 1e12 : age;
  };
  std::stable_sort(rows->begin(), rows->end(),
                   [&](const Row& a, const Row& b) { return weight(a) > weight(b); });
}

// The one that ended last comes first, of whichever model it is.
void SortByEnd(std::vector<Row>* rows) {
  std::stable_sort(rows->begin(), rows->end(),
                   [](const Row& a, const Row& b) { return a.view.ended > b.view.ended; });
}

struct Account {
  int64_t open = 0, waiting = 0, tokens = 0;

  int64_t By(const std::string& sort) const {
    if (sort == "name") return 0;
    return sort == "tokens" ? tokens : sort == "wait" ? waiting : open;
  }
};

// The users of open requests. The user with the most comes first, and users who have as many by their names.
Json UsersJson(const std::vector<Row>& rows, const std::string& sort) {
  std::map<std::string, Account> accounts;
  for (const Row& row : rows) {
    if (row.view.state == State::kEnded) continue;
    Account& account = accounts[row.trail->facts().user];
    ++account.open;
    account.waiting += row.view.state == State::kWaiting;
    account.tokens += row.view.output_tokens;
  }
  std::vector<std::pair<std::string, Account>> sorted(accounts.begin(), accounts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto& a, const auto& b) { return a.second.By(sort) > b.second.By(sort); });
  if (sorted.size() > kMaxUsers) sorted.resize(kMaxUsers);
  Json users = Json::array();
  for (const auto& [user, account] : sorted) {
    users.push_back({{"user", user},
                     {"num_open", account.open},
                     {"num_waiting", account.waiting},
                     {"num_output_tokens", account.tokens}});
  }
  return users;
}

std::vector<Row> RowsOf(const std::vector<SharedModel>& models, const Question& question) {
  std::vector<Row> rows;
  absl::flat_hash_set<const RequestTrail*> seen;  // a request may end between the two looks at a history
  const auto add = [&](const std::vector<SharedTrail>& trails) {
    for (const SharedTrail& trail : trails) {
      if (!seen.insert(trail.get()).second || !question.Matches(trail->facts())) continue;
      rows.push_back({trail, trail->Look(/*with_entries=*/false)});
    }
  };
  for (const SharedModel& model : models) {
    add(model->history->Open());
    add(model->history->Ended(kMaxLimit));
  }
  return rows;
}

HttpResponse List(const std::vector<SharedModel>& models, const Question& question) {
  const absl::Time now = absl::Now();
  std::vector<Row> rows = RowsOf(models, question);
  std::map<State, int64_t> counts;
  for (const Row& row : rows) ++counts[row.view.state];
  Json users = UsersJson(rows, question.users_sort);
  std::erase_if(rows, [&](const Row& row) { return !question.Wants(row.view.state); });
  question.state == "ended" ? SortByEnd(&rows) : Sort(question.sort, &rows);
  if (rows.size() > question.limit) rows.resize(question.limit);
  Json named = Json::object(), data = Json::array();
  for (const State state : kStates) named[TrailStateName(state)] = counts[state];
  for (const Row& row : rows) data.push_back(RequestJson(row, now));
  return Dumped({{"object", "list"},
                 {"now", UnixSeconds(now)},
                 {"counts", std::move(named)},
                 {"users", std::move(users)},
                 {"data", std::move(data)}});
}

HttpResponse One(const std::vector<SharedModel>& models, const std::string& id) {
  for (const SharedModel& model : models) {
    const std::vector<SharedTrail> found = model->history->Find(id);
    if (found.empty()) continue;
    const Row row = {found.front(), found.front()->Look(/*with_entries=*/true)};
    Json request = RequestJson(row, absl::Now()), events = Json::array();
    for (const RequestTrail::Entry& entry : row.view.entries) {
      events.push_back({{"event", TrailEventName(entry.event)},
                        {"at", UnixSeconds(entry.at)},
                        {"count", entry.count},
                        {"detail", entry.detail}});
    }
    request["events"] = std::move(events);
    request["num_dropped_events"] = row.view.num_dropped;
    return Dumped(request);
  }
  return ErrorResponse(
      {404, "No open request has this id, and none of those that ended last (--request-history).", "id"});
}

}  // namespace

HttpResponse AnswerRequests(const std::vector<SharedModel>& models, const RouteMatch& match,
                            absl::string_view query) {
  if (match.spec->route == Route::kRequest) return One(models, match.detail);
  Question question;
  if (const std::optional<ApiError> error = ReadQuestion(query, &question)) return ErrorResponse(*error);
  const std::string name = LastOf(query, "model", "");
  if (name.empty()) return List(models, question);
  for (const SharedModel& model : models) {
    if (model->HasName(name)) return List({model}, question);
  }
  return ErrorResponse(UnknownModel(name, ModelNames(models)));
}

}  // namespace somnus
