#pragma once
// GET /kv_events: which events of which model a request asks for. Does not block. Thread safe.

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/engine/kv_event_log.h"
#include "coordinator/http_server/api_state.h"

namespace somnus {

// ?model= where several models are served; ?from_seq= is the batch to go on from. `last_event_id`, the header
// with which an interrupted client comes back, goes before from_seq: the stream goes on behind that event.
// Empty: there is no such header. `on_ready` is KvEventLog::Follow's.
std::variant<std::unique_ptr<KvEventReader>, HttpResponse> OpenKvEvents(const ApiState& state,
                                                                        const RouteSpec& spec,
                                                                        absl::string_view query,
                                                                        const std::string& last_event_id,
                                                                        std::function<void()> on_ready);
// Returns the events that there are to read, or as many events as are sent at once; empty: none.
std::string ReadKvEvents(KvEventReader* reader);

}  // namespace somnus
