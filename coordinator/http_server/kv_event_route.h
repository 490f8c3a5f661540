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

// ?model= where several are served; ?from_seq= is the batch to go on from. `last_event_id`, the header with
// which a client comes back that was interrupted, goes before that: the stream goes on behind it. Empty:
// there is none. `on_ready` is KvEventLog::Follow's.
std::variant<std::unique_ptr<KvEventReader>, HttpResponse> OpenKvEvents(const ApiState& state,
                                                                        const RouteSpec& spec,
                                                                        absl::string_view query,
                                                                        const std::string& last_event_id,
                                                                        std::function<void()> on_ready);
// What there is to read, or as much of it as is sent at once; empty: nothing.
std::string ReadKvEvents(KvEventReader* reader);

}  // namespace somnus
