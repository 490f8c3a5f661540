#pragma once
// GET and DELETE /v1/responses/{id}, and POST /v1/responses/{id}/cancel. No route blocks. Thread safe.

#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"
#include "coordinator/http/routes.h"
#include "coordinator/openai/model_table.h"
#include "coordinator/responses/response_store.h"

namespace somnus {

// `models`: all served models. A response that is cancelled ends as soon as the engine has heard of that.
HttpResponse AnswerStoredResponse(const std::vector<SharedModel>& models, const RouteMatch& match,
                                  absl::string_view query, ResponseStore* store);

}  // namespace somnus
