#pragma once
// The operators' routes that change the engine: /sleep, /wake_up, /pause, /resume, /reset_prefix_cache,
// /abort_requests, /collective_rpc and /roll. Thread safe.

#include <functional>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/api/http_response.h"
#include "coordinator/api/routes.h"
#include "coordinator/api/served_model.h"
#include "proto/control.pb.h"

namespace somnus {

// Blocks until all ranks have replied, and open requests have ended where the call waits for them. A
// parameter of the query or a field of the body that the route does not take is a 400, and nothing is done.
// `rank_status` may be empty.
HttpResponse AnswerLifecycle(const RouteSpec& spec, const ServedModel& model,
                             const std::function<std::vector<v1::RankStatus>()>& rank_status,
                             absl::string_view query, absl::string_view body);

}  // namespace somnus
