#pragma once
// The operators' routes that change the engine: /sleep, /wake_up, /pause, /resume, /reset_prefix_cache,
// /abort_requests, /collective_rpc and /roll. Thread safe.

#include "absl/strings/string_view.h"
#include "coordinator/api/http_response.h"
#include "coordinator/api/routes.h"
#include "coordinator/api/served_model.h"

namespace somnus {

// Blocks until all ranks have replied, and open requests have ended where the call waits for them. A
// parameter of the query or a field of the body that the route does not take is a 400, and nothing is done;
// ?model= is the caller's, who has found the model.
HttpResponse AnswerLifecycle(const RouteSpec& spec, const ServedModel& model, absl::string_view query,
                             absl::string_view body);

}  // namespace somnus
