#include "coordinator/http/no_route.h"

#include "absl/strings/str_cat.h"
#include "coordinator/http/shown_text.h"

namespace somnus {

HttpResponse NoRoute(bool admin, uint16_t admin_port, absl::string_view method, absl::string_view target,
                     const RouteMatch& match) {
  if (match.status == 204) return HttpResponse{204, "", "", {{"Allow", match.detail}}};
  if (match.status == 307) return HttpResponse{307, "", "", {{"Location", match.detail}}};
  const std::string path = ShownText(target.substr(0, target.find('?')));
  if (match.status == 405) {
    HttpResponse response = ErrorResponse(
        {405, absl::StrCat(path, " does not take ", ShownText(method), ", but ", match.detail, "."), ""});
    response.headers.emplace_back("Allow", match.detail);
    return response;
  }
  std::string message = absl::StrCat("There is no route ", ShownText(method), " ", path);
  if (!admin && MatchRoute(true, method, target).status != 404)
    absl::StrAppend(&message, " here: it is one of operators, on their port ", admin_port, " (--admin-port)");
  return ErrorResponse({404, absl::StrCat(message, "."), ""});
}

}  // namespace somnus
