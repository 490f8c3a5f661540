#pragma once
// The answers of operators' port about requests (GET /requests), as values and as text for a terminal. Pure
// but for FetchRequests and FetchRequest. All texts of clients are shown as Printable.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/cli/server.h"

namespace somnus::cli {

// A time that is below zero has not come.
struct RequestRow {
  std::string id, model, user, state, finish_reason;
  double received = 0;  // Unix seconds
  double age_s = 0, queue_s = -1, ttft_s = -1;
  int64_t choices = 1, prompt_tokens = 0, output_tokens = 0, max_tokens = 0, steps = 0, preemptions = 0;
};

struct UserRow {
  std::string user;
  int64_t open = 0, waiting = 0, output_tokens = 0;
};

struct RequestList {
  std::map<std::string, int64_t> counts;  // by state
  std::vector<UserRow> users;
  std::vector<RequestRow> rows;
};

struct RequestEvent {
  std::string event, detail;
  double at = 0;  // Unix seconds
  int64_t count = 1;
};

struct RequestStory {
  RequestRow row;
  std::vector<RequestEvent> events;
  int64_t dropped_events = 0;
};

// The requests to list. `match`: a part of an id, a model's or a user's name.
struct RequestQuestion {
  std::string state = "open", sort = "age", users_sort = "open", match, model;
  int limit = 100;
};

// Errors are those of the port: Unavailable, FailedPrecondition for another key, Internal with the server's
// words.
absl::StatusOr<RequestList> FetchRequests(const Server& server, const RequestQuestion& question);
// The server's JSON about the request.
absl::StatusOr<nlohmann::json> FetchRequest(const Server& server, const std::string& id);
// These requests end with finish_reason "abort". Returns how many were open.
absl::StatusOr<int> AbortRequests(const Server& server, const std::string& model,
                                  const std::vector<std::string>& ids);

RequestList ReadRequestList(const nlohmann::json& json);
RequestStory ReadRequestStory(const nlohmann::json& json);

// The events of the request, line by line, of at most `columns` where words allow such lines.
std::string StoryText(const RequestStory& story, absl::TimeZone zone, int columns);
// One line about a request that has ended.
std::string LogLine(const RequestRow& row, absl::TimeZone zone);

}  // namespace somnus::cli
