#pragma once
// What a request's head alone decides. Internal to coordinator/api. Thread safe.

#include <optional>

#include "coordinator/api/api_state.h"
#include "coordinator/api/http_request.h"

namespace somnus {

// Gives the request the headers that every response to it has: its id, and CORS on clients' listener.
void AddResponseHeaders(const ApiState& state, bool admin, HttpRequest* request);

// Whether a browser asks what a page may send (cors.h), on clients' listener where CORS is on.
bool IsPreflight(const ApiState& state, bool admin, const HttpRequest& request);

// The response to a request that is refused before its body is read: for its head's form, for want of a key,
// as a web page's, or because no route takes its body. nullopt: it is not refused.
std::optional<HttpResponse> RefusalOf(const ApiState& state, bool admin, const HttpRequest& request,
                                      bool has_body);

}  // namespace somnus
