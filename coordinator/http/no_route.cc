#include "coordinator/http/no_route.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/http/shown_text.h"

namespace somnus {
namespace {

constexpr absl::string_view kVersion = "/v1";

// The route that a client most likely means whose address has "/v1" too often, or not at all; empty: none.
std::string NearPath(bool admin, absl::string_view method, absl::string_view path) {
  absl::string_view rest = path;
  std::string near = absl::StrCat(kVersion, path);
  if (absl::ConsumePrefix(&rest, kVersion) && absl::StartsWith(rest, "/")) near = std::string(rest);
  return MatchRoute(admin, method, near).status == 200 ? near : "";
}

}  // namespace

HttpResponse NoRoute(bool admin, uint16_t admin_port, absl::string_view method, absl::string_view target,
                     const RouteMatch& match) {
  if (match.status == 204) return HttpResponse{204, "", "", {{"Allow", match.detail}}};
  if (match.status == 307) return HttpResponse{307, "", "", {{"Location", match.detail}}};
  const absl::string_view raw_path = target.substr(0, target.find('?'));
  const std::string path = ShownText(raw_path);
  if (match.status == 405) {
    HttpResponse response = ErrorResponse(
        {405, absl::StrCat(path, " does not take ", ShownText(method), ", but ", match.detail, "."), ""});
    response.headers.emplace_back("Allow", match.detail);
    return response;
  }
  std::string message = absl::StrCat("There is no route ", ShownText(method), " ", path);
  if (!admin && MatchRoute(true, method, target).status != 404)
    return ErrorResponse({404,
                          absl::StrCat(message, " here: it is one of operators, on their port ", admin_port,
                                       " (--admin-port)."),
                          ""});
  if (const std::string near = NearPath(admin, method, raw_path); !near.empty())
    return ErrorResponse({404, absl::StrCat(message, "; there is ", ShownText(near), "."), ""});
  return ErrorResponse({404, absl::StrCat(message, ". GET /openapi.json lists the routes."), ""});
}

}  // namespace somnus
