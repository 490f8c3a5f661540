#include "coordinator/responses/stored_routes.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/http/query_string.h"

namespace somnus {
namespace {

using OrderedJson = nlohmann::ordered_json;

HttpResponse BodyResponse(const StoredResponse& stored) {
  return {200, "application/json", *stored.body, {}};
}

HttpResponse Cancel(const std::vector<SharedModel>& models, const std::string& id,
                    const StoredResponse& stored) {
  OrderedJson body = OrderedJson::parse(*stored.body);
  if (stored.has_ended) {
    if (body["status"] == "cancelled") return BodyResponse(stored);
    return ErrorResponse(BadRequest("response_id", "The response has ended: nothing is left to cancel."));
  }
  for (const SharedModel& model : models) {
    for (const std::string& engine_id : model->open_requests->Find(std::vector<std::string>{id}).engine_ids)
      model->engine->Abort(engine_id);
  }
  body["status"] = "cancelled";
  return JsonResponse(body);
}

}  // namespace

HttpResponse AnswerStoredResponse(const std::vector<SharedModel>& models, const RouteMatch& match,
                                  absl::string_view query, ResponseStore* store) {
  const std::string& id = match.detail;
  const std::optional<StoredResponse> stored = store->Find(id);
  if (!stored.has_value())
    return ErrorResponse({404, "The response does not exist, or is no longer kept.", "response_id"});
  switch (match.spec->route) {
    case Route::kCancelResponse:
      return Cancel(models, id, *stored);
    case Route::kDeleteResponse:
      store->Remove(id);
      return JsonResponse(OrderedJson{{"id", id}, {"object", "response"}, {"deleted", true}});
    default:
      break;
  }
  for (const std::string& value : QueryValues(query, "stream")) {
    if (value == "true")
      return ErrorResponse(BadRequest("stream", "A response that is kept cannot be streamed again."));
  }
  return BodyResponse(*stored);
}

}  // namespace somnus
