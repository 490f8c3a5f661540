#pragma once
// GET /v1/prefixes, and GET and DELETE /v1/prefixes/{id}. They do not block. Thread safe.

#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/api/http_response.h"
#include "coordinator/api/model_table.h"
#include "coordinator/api/routes.h"

namespace somnus {

// `models`: all that are served; ?model= chooses one of them.
HttpResponse AnswerPrefixes(std::vector<SharedModel> models, const RouteMatch& match,
                            absl::string_view query);

}  // namespace somnus
