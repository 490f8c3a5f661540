#include "coordinator/http_server/kv_event_route.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/operators/kv_event_json.h"
#include "coordinator/operators/lifecycle_parameters.h"

namespace somnus {
namespace {

constexpr char kLastEventId[] = "Last-Event-ID";
constexpr size_t kChunkBytes = 256 << 10;  // after which no further batch is added

// Parses a number that has a successor in int64.
std::optional<int64_t> ParseSequence(absl::string_view text) {
  int64_t sequence = 0;
  const bool is_number = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!is_number || !absl::SimpleAtoi(text, &sequence) || sequence == std::numeric_limits<int64_t>::max())
    return std::nullopt;
  return sequence;
}

ApiError NotANumber(const char* name) {
  return BadRequest(name, absl::StrCat(name, " must be the number of a batch of events"));
}

// Where the stream begins; nullopt: with a snapshot.
std::variant<std::optional<int64_t>, ApiError> BeginsAt(const LifecycleParameters& parameters,
                                                        const std::string& last_event_id) {
  std::optional<int64_t> from;
  if (const auto& values = parameters.Values("from_seq"); !values.empty()) {
    from = ParseSequence(values.back());
    if (!from.has_value()) return NotANumber("from_seq");
  }
  if (last_event_id.empty()) return from;
  from = ParseSequence(last_event_id);
  if (!from.has_value()) return NotANumber(kLastEventId);
  return std::optional(*from + 1);
}

}  // namespace

std::variant<std::unique_ptr<KvEventReader>, HttpResponse> OpenKvEvents(const ApiState& state,
                                                                        const RouteSpec& spec,
                                                                        absl::string_view query,
                                                                        const std::string& last_event_id,
                                                                        std::function<void()> on_ready) {
  const std::variant<LifecycleParameters, ApiError> read = ReadParameters(spec, query, "");
  if (const auto* error = std::get_if<ApiError>(&read)) return ErrorResponse(*error);
  const auto& parameters = std::get<LifecycleParameters>(read);
  const std::variant<std::optional<int64_t>, ApiError> begins = BeginsAt(parameters, last_event_id);
  if (const auto* error = std::get_if<ApiError>(&begins)) return ErrorResponse(*error);
  std::variant<SharedModel, HttpResponse> named = state.Named(parameters.Values("model"));
  if (auto* error = std::get_if<HttpResponse>(&named)) return std::move(*error);
  const std::shared_ptr<KvEventLog>& log = std::get<SharedModel>(named)->kv_events;
  if (log == nullptr)
    return ErrorResponse(
        {404, "KV events are off: they need --max-kv-events and --enable-prefix-caching.", ""});
  return log->Follow(std::get<std::optional<int64_t>>(begins), std::move(on_ready));
}

std::string ReadKvEvents(KvEventReader* reader) {
  std::string events;
  while (events.size() < kChunkBytes) {
    const std::shared_ptr<const KvEventBatch> batch = reader->Next();
    if (batch == nullptr) break;
    events += KvServerSentEvent(*batch, reader->log().block_size());
  }
  return events;
}

}  // namespace somnus
