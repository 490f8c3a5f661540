#include "coordinator/operators/status_route.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/http/api_error.h"
#include "coordinator/operators/status_json.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

HttpResponse StatusResponse(std::string body) {
  return {200, "application/json", std::move(body), {{"Cache-Control", "no-store"}}};
}

}  // namespace

StatusRoute::StatusRoute(const ModelTable* models, std::string version)
    : models_(models), version_(std::move(version)) {}

std::string StatusRoute::MakeBody(const ServedModel* model) const {
  Json models = Json::array();
  for (const SharedModel& one : models_->All()) models.push_back(ModelStatusJson(*one));
  const double uptime = absl::ToDoubleSeconds(MonotonicNow() - start_);
  Json status = {{"version", version_},
                 {"uptime_s", uptime},
                 {"state_report", model == nullptr ? StateReportJson(models_->Starting()) : Json(nullptr)},
                 {"models", std::move(models)},
                 {"detail", model == nullptr ? Json(nullptr) : ModelDetailJson(*model)}};
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse StatusRoute::Respond(const std::string& name) {
  SharedModel model = models_->Get();
  if (model == nullptr) return StatusResponse(MakeBody(nullptr));
  if (!name.empty()) model = models_->Find(name);
  if (model != nullptr && !model->parent.empty()) model = models_->Find(model->parent);  // of an adapter
  if (model == nullptr) return ErrorResponse(UnknownModel(name, ModelNames(models_->All())));
  {
    absl::MutexLock lock(&mu_);
    Answer& answer = answers_[model->name];
    const bool is_young = !answer.body.empty() && MonotonicNow() - answer.made < kStatusInterval;
    if (is_young || (answer.is_being_made && !answer.body.empty())) return StatusResponse(answer.body);
    if (answer.is_being_made) return ErrorResponse({503, "The first status is still being made.", ""});
    answer.is_being_made = true;
  }
  std::string body = MakeBody(model.get());
  absl::MutexLock lock(&mu_);
  Answer& answer = answers_[model->name];
  answer.body = body;
  answer.made = MonotonicNow();
  answer.is_being_made = false;
  return StatusResponse(std::move(body));
}

}  // namespace somnus
