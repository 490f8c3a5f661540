#pragma once
// Decisions that a request's head alone allows. Internal to coordinator/http_server. Thread safe.

#include <optional>

#include "coordinator/http_server/api_state.h"
#include "coordinator/http_server/http_request.h"

namespace somnus {

// Sets the headers of every response to the request: the request's id, and CORS of clients' requests.
void AddResponseHeaders(const ApiState& state, HttpRequest* request);

// Whether the request is a preflight of a browser (cors.h) for a client, where CORS is on.
bool IsPreflight(const ApiState& state, const HttpRequest& request);

// The response to a request that is refused before the body is read: for the header fields, for want of a
// key, as the request of a web page, or because no route takes the body. nullopt: the request may go on.
std::optional<HttpResponse> RefusalOf(const ApiState& state, const HttpRequest& request, bool has_body);

}  // namespace somnus
