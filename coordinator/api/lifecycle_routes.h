#pragma once
// The operators' routes that change the engine: /sleep, /wake_up, /reset_prefix_cache and
// /roll. Thread safe.

#include "absl/strings/string_view.h"
#include "coordinator/api/http_response.h"
#include "coordinator/api/routes.h"
#include "coordinator/engine/engine.h"

namespace somnus {

// Blocks until all ranks have replied. A parameter of the query or a field of the body that the route does
// not take is a 400, and nothing is done.
HttpResponse AnswerLifecycle(const RouteSpec& spec, Engine* engine, absl::string_view query,
                             absl::string_view body);

}  // namespace somnus
