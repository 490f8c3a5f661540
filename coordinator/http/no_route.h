#pragma once
// The responses to requests that no route takes. Pure.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"
#include "coordinator/http/routes.h"

namespace somnus {

// `match`: the result of MatchRoute(admin, method, target), without a spec. An error names method and path,
// and the operators' port where the path is a route of operators; else the route that may be meant, or where
// the routes are listed.
HttpResponse NoRoute(bool admin, uint16_t admin_port, absl::string_view method, absl::string_view target,
                     const RouteMatch& match);

}  // namespace somnus
