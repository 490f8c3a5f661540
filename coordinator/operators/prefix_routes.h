#pragma once
// GET /v1/prefixes, and GET and DELETE /v1/prefixes/{id}. No route blocks. Thread safe.

#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"
#include "coordinator/http/routes.h"
#include "coordinator/openai/model_table.h"

namespace somnus {

// `models`: all served models; ?model= chooses a model.
HttpResponse AnswerPrefixes(std::vector<SharedModel> models, const RouteMatch& match,
                            absl::string_view query);

}  // namespace somnus
