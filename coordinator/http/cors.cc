#include "coordinator/http/cors.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/http/shown_text.h"

namespace somnus {
namespace {

constexpr char kAllMethods[] = "DELETE, GET, HEAD, OPTIONS, POST";
constexpr char kMaxAge[] = "600";  // seconds for which a browser may remember a preflight
// Response headers that scripts may read besides the headers that the standard always allows.
constexpr char kExposed[] = "X-Request-Id, X-Weight-Version, Retry-After";
// Request headers that need no permission, or that every client of this API sends.
constexpr absl::string_view kSafeHeaders[] = {"accept", "accept-language", "content-language",
                                              "content-type"};

bool Has(const std::vector<std::string>& list, absl::string_view value) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& item) { return absl::EqualsIgnoreCase(item, value); });
}

HttpResponse Disallowed(const char* what, absl::string_view value, const char* flag) {
  return ErrorResponse(
      {400, absl::StrCat("Disallowed CORS ", what, " (", flag, "): ", ShownText(value)), ""});
}

}  // namespace

CorsPolicy::CorsPolicy(CorsOptions options)
    : options_(std::move(options)),
      any_origin_(Has(options_.allowed_origins, "*")),
      any_method_(Has(options_.allowed_methods, "*")),
      any_header_(Has(options_.allowed_headers, "*")) {}

// Browsers write an origin with scheme and host in lower case; the comparison ignores case.
bool CorsPolicy::Allows(absl::string_view origin) const {
  return any_origin_ || Has(options_.allowed_origins, origin);
}

bool CorsPolicy::AllowsHeaders(absl::string_view headers) const {
  if (any_header_) return true;
  for (absl::string_view header : absl::StrSplit(headers, ',')) {
    header = absl::StripAsciiWhitespace(header);
    const bool safe =
        std::any_of(std::begin(kSafeHeaders), std::end(kSafeHeaders),
                    [&](absl::string_view name) { return absl::EqualsIgnoreCase(name, header); });
    if (!header.empty() && !safe && !Has(options_.allowed_headers, header)) return false;
  }
  return true;
}

HttpHeaders CorsPolicy::ResponseHeaders(absl::string_view origin) const {
  HttpHeaders headers;
  if (!enabled()) return headers;
  // A browser does not accept "*" for a request with credentials.
  const bool same_for_all = any_origin_ && !options_.allow_credentials;
  // The response without an origin needs Vary, too: a cache must not give that response to a page.
  if (!same_for_all) headers.emplace_back("Vary", "Origin");
  if (origin.empty() || !Allows(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", same_for_all ? "*" : std::string(origin));
  if (options_.allow_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  headers.emplace_back("Access-Control-Expose-Headers", kExposed);
  return headers;
}

HttpResponse CorsPolicy::Preflight(absl::string_view origin, absl::string_view method,
                                   absl::string_view headers) const {
  if (!Allows(origin)) return Disallowed("origin", origin, "--allowed-origins");
  if (!any_method_ && !Has(options_.allowed_methods, method))
    return Disallowed("method", method, "--allowed-methods");
  if (!AllowsHeaders(headers)) return Disallowed("headers", headers, "--allowed-headers");
  HttpResponse response{200, "", "", {}};
  response.headers.emplace_back("Access-Control-Allow-Methods",
                                any_method_ ? kAllMethods : absl::StrJoin(options_.allowed_methods, ", "));
  if (!headers.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", std::string(headers));
  response.headers.emplace_back("Access-Control-Max-Age", kMaxAge);
  return response;
}

}  // namespace somnus
