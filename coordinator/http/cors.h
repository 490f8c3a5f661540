#pragma once
// Cross-origin requests (CORS): which web pages of foreign origins may use clients' listener from a browser.
// Pure; immutable; thread safe. The options and the responses are as in vLLM's server, which uses
// Starlette's CORSMiddleware; but this server allows no origin unless a flag says so.
// Source: https://fetch.spec.whatwg.org/#http-cors-protocol

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/cors_options.h"
#include "coordinator/http/http_response.h"

namespace somnus {

class CorsPolicy {
 public:
  explicit CorsPolicy(CorsOptions options);

  // The headers of every response to a request of `origin`, errors included; "": the request names no origin.
  HttpHeaders ResponseHeaders(absl::string_view origin) const;

  // Whether any origin is allowed; else CORS is off.
  bool enabled() const { return !options_.allowed_origins.empty(); }

  // The response to a preflight, an OPTIONS request of `origin` that asks for `method` and `headers` (a list
  // with commas): 200, or a 400 that names the forbidden origin, method or headers. Without ResponseHeaders.
  HttpResponse Preflight(absl::string_view origin, absl::string_view method, absl::string_view headers) const;

 private:
  bool Allows(absl::string_view origin) const;
  bool AllowsHeaders(absl::string_view headers) const;

  const CorsOptions options_;
  const bool any_origin_, any_method_, any_header_;
};

}  // namespace somnus
