#include "coordinator/operators/prefix_routes.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/http/query_string.h"
#include "coordinator/openai/prefix_request.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

HttpResponse ListResponse(const std::vector<SharedModel>& models) {
  Json prefixes = Json::array();
  for (const SharedModel& model : models) {
    for (const PinnedPrefix& prefix : model->engine->pinned_prefixes().List())
      prefixes.push_back(PrefixJson(*model, prefix));
  }
  return JsonResponse(Json{{"object", "list"}, {"data", std::move(prefixes)}});
}

}  // namespace

HttpResponse AnswerPrefixes(std::vector<SharedModel> models, const RouteMatch& match,
                            absl::string_view query) {
  if (const std::vector<std::string> names = QueryValues(query, "model"); !names.empty()) {
    const std::vector<SharedModel> all = models;
    std::erase_if(models, [&](const SharedModel& model) { return !model->HasName(names.back()); });
    if (models.empty()) return ErrorResponse(UnknownModel(names.back(), ModelNames(all)));
  }
  const std::string& id = match.detail;
  if (match.spec->route == Route::kPrefixes) return ListResponse(models);
  for (const SharedModel& model : models) {
    if (match.spec->route == Route::kPrefix) {
      if (const std::optional<PinnedPrefix> prefix = FindPrefix(*model, id))
        return JsonResponse(PrefixJson(*model, *prefix));
    } else if (model->engine->pinned_prefixes().Unpin(id).ok()) {
      return JsonResponse(Json{{"id", id}, {"object", "prefix"}, {"deleted", true}});
    }
  }
  return ErrorResponse({404, "The prefix does not exist.", "id"});
}

}  // namespace somnus
