#include "coordinator/records/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

// The longest time for which the end of the server waits until the queued lines are written.
constexpr absl::Duration kEndPatience = absl::Seconds(1);

Json TextOrNull(absl::string_view text) {
  if (text.empty()) return nullptr;
  return std::string(text.substr(0, AccessLog::kMaxTextBytes));
}

// Seconds to a microsecond; null where a moment has not come.
Json SecondsBetween(absl::Time from, absl::Time to) {
  if (from == absl::InfinitePast() || to == absl::InfinitePast() || to < from) return nullptr;
  return static_cast<double>(absl::ToInt64Microseconds(to - from)) / 1e6;
}

std::string WithBreak(const Json& line) {
  return line.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

void AddSummary(const RequestRecord& record, Json* line) {
  const bool has_summary = record.summary.has_value();
  const RequestSummary summary = record.summary.value_or(RequestSummary());
  const auto count = [&](int64_t value) { return has_summary ? Json(value) : Json(nullptr); };
  (*line)["response_id"] = TextOrNull(summary.response_id);
  (*line)["model"] = TextOrNull(summary.model);
  (*line)["prompt_tokens"] = count(summary.prompt_tokens);
  (*line)["completion_tokens"] = count(summary.completion_tokens);
  (*line)["cached_tokens"] = count(summary.cached_tokens);
  (*line)["ttft_seconds"] = SecondsBetween(record.begin, summary.moments.first_token);
  (*line)["finish_reason"] = TextOrNull(summary.finish_reason);
}

}  // namespace

std::string AccessLine(const RequestRecord& record) {
  Json line = {{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", record.begin, absl::UTCTimeZone())},
               {"request_id", TextOrNull(record.request_id)},
               {"client", TextOrNull(record.client)},
               {"protocol", TextOrNull(record.protocol)},
               {"listener", record.of_operators ? "operators" : "clients"},
               {"method", TextOrNull(record.method)},
               {"route", TextOrNull(record.route)},
               {"status", record.status},
               {"duration_seconds", SecondsBetween(record.begin, record.end)}};
  if (record.generates) AddSummary(record, &line);
  return WithBreak(line);
}

absl::StatusOr<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path, int64_t queue_bytes) {
  // O_NONBLOCK: a FIFO without a reader must not hold up the start; the writer has a thread of its own.
  const int fd = path == "-"
                     ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                     : open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
  if (fd < 0 && errno == ENXIO)
    return absl::FailedPreconditionError(absl::StrCat(path, " is a FIFO that nobody reads, or a socket"));
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  if (path != "-") fcntl(fd, F_SETFL, O_APPEND);
  return std::unique_ptr<AccessLog>(new AccessLog(fd, queue_bytes));
}

AccessLog::AccessLog(int fd, int64_t queue_bytes)
    : fd_(fd), writer_(std::make_unique<LogWriter>(fd, queue_bytes, [](int64_t count) {
        return WithBreak({{"dropped_lines", count}});
      })) {}

// A writer whose reader has stopped is left alone with its descriptor: the destructor would wait for the
// reader.
AccessLog::~AccessLog() {
  if (!writer_->Flush(kEndPatience)) {
    (void)writer_.release();
    return;
  }
  writer_.reset();
  close(fd_);
}

}  // namespace somnus
