#include "coordinator/api/api_state.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/api/api_key.h"
#include "coordinator/api/json_body.h"
#include "coordinator/api/lifecycle_routes.h"
#include "coordinator/api/query_string.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

// Older OpenAI clients read this object. It allows everything that this server can do.
Json Permission(int64_t created) {
  return {{"id", "modelperm-somnus"},
          {"object", "model_permission"},
          {"created", created},
          {"allow_create_engine", false},
          {"allow_sampling", true},
          {"allow_logprobs", true},
          {"allow_search_indices", false},
          {"allow_view", true},
          {"allow_fine_tuning", false},
          {"organization", "*"},
          {"group", nullptr},
          {"is_blocking", false}};
}

Json PortOrNull(uint16_t port) { return port == 0 ? Json(nullptr) : Json(port); }

}  // namespace

ApiState::ApiState(ApiServerOptions options_in, std::shared_ptr<Metrics> metrics_in)
    : options(std::move(options_in)),
      metrics(std::move(metrics_in)),
      created(absl::ToUnixSeconds(absl::Now())) {}

bool ApiState::Authorized(bool admin, absl::string_view authorization) const {
  return BearerMatches(authorization, admin ? options.admin_api_key : options.api_key);
}

void ApiState::SetModels(std::vector<ServedModel> models) {
  for (ServedModel& model : models) {
    if (model.metrics == nullptr) model.metrics = metrics;
  }
  models_.Set(std::move(models));
}

SharedModel ApiState::ModelOf(absl::string_view body) const {
  if (models_.All().size() > 1) {
    const ApiLimits& limits = options.limits;
    const std::string name = FindModelName(body, {limits.max_json_depth, limits.max_json_values});
    if (SharedModel model = models_.Find(name)) return model;
  }
  return models_.Get();
}

std::string ApiState::MetricsText() const {
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return metrics->Serialize(EngineStats{});
  // All are in one registry.
  for (const SharedModel& model : models) model->metrics->Update(model->engine->Stats());
  return metrics->Serialize();
}

HttpResponse ApiState::Models(absl::string_view name) const {
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return LoadingResponse();
  Json cards = Json::array();
  for (const SharedModel& model : models) {
    Json card = {{"id", model->name},
                 {"object", "model"},
                 {"created", created},
                 {"owned_by", "somnus"},
                 {"root", model->name},
                 {"parent", nullptr},
                 {"max_model_len", model->engine->max_model_len()},
                 {"permission", Json::array({Permission(created)})}};
    if (models.size() > 1) card["state"] = EngineStateName(model->engine->state());
    if (name == model->name) return JsonResponse(card);
    cards.push_back(std::move(card));
  }
  if (name.empty()) return JsonResponse(Json{{"object", "list"}, {"data", std::move(cards)}});
  return ErrorResponse({404, "The model does not exist.", "model"});
}

// A client that has one address learns the others from it.
HttpResponse ApiState::ServerInfo() const {
  const SharedModel served = models_.Get();
  const int64_t version = served == nullptr ? 0 : served->engine->Stats().weights_version;
  return JsonResponse(Json{{"version", options.version},
                           {"model", served == nullptr ? Json(nullptr) : Json(served->name)},
                           {"weight_version", version == 0 ? Json(nullptr) : Json(version)},
                           {"http_port", http_port},
                           {"admin_port", admin_port},
                           {"grpc_port", PortOrNull(options.grpc_port)},
                           {"control_port", PortOrNull(options.control_port)},
                           {"tls", !options.tls.certificate.empty()},
                           {"admin_tls", !options.admin_tls.certificate.empty()}});
}

HttpResponse ApiState::Health() const {
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return LoadingResponse();
  for (const SharedModel& model : models) {
    const absl::Status health = model->engine->Health();
    if (health.ok()) continue;
    const std::string whose = models.size() > 1 ? absl::StrCat(model->name, ": ") : "";
    return ErrorResponse({503, CleanMessage(absl::StrCat(whose, health.message())), ""});
  }
  return {200, "", "", {}};
}

HttpResponse ApiState::Livez() const {
  const std::vector<SharedModel> models = models_.All();
  for (const SharedModel& model : models) {
    if (IsLive(model->engine->state())) return {200, "", "", {}};
  }
  if (models.empty()) return {200, "", "", {}};
  return ErrorResponse({503, CleanMessage(models.front()->engine->Health().message()), ""});
}

std::variant<SharedModel, HttpResponse> ApiState::Named(absl::string_view query) const {
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return LoadingResponse();
  const std::vector<std::string> names = QueryValues(query, "model");
  if (names.empty() && models.size() == 1) return models.front();
  if (names.empty())
    return ErrorResponse(BadRequest("model", absl::StrCat("several models are served (", ModelNames(models),
                                                          "): ?model= says which is meant")));
  if (SharedModel model = models_.Find(names.back())) return model;
  return ErrorResponse({404, "The model does not exist.", "model"});
}

HttpResponse ApiState::OfModel(absl::string_view query,
                               const std::function<HttpResponse(const ServedModel&)>& answer) const {
  std::variant<SharedModel, HttpResponse> named = Named(query);
  if (auto* error = std::get_if<HttpResponse>(&named)) return std::move(*error);
  return answer(*std::get<SharedModel>(named));
}

HttpResponse ApiState::Answer(const RouteMatch& match, absl::string_view query) const {
  switch (match.spec->route) {
    case Route::kModels:
    case Route::kModel:
      return Models(match.detail);
    case Route::kHealth:
    case Route::kReadyz:
    case Route::kPing:
      return Health();
    case Route::kLivez:
      return Livez();
    case Route::kVersion:
      return JsonResponse(Json{{"version", options.version.empty() ? "0" : options.version}});
    case Route::kServerInfo:
      return ServerInfo();
    case Route::kLoad:
      return JsonResponse(Json{{"server_load", load.load()}});
    case Route::kMetrics:
      return {200, "text/plain; version=0.0.4; charset=utf-8", MetricsText(), {}};
    case Route::kIsSleeping:
      if (loading()) return JsonResponse(Json{{"is_sleeping", false}});
      return OfModel(query, [](const ServedModel& model) {
        const EngineStats stats = model.engine->Stats();
        return JsonResponse(Json{{"is_sleeping", IsSleeping(stats.state, stats.sleep_level, stats.paused)}});
      });
    case Route::kIsPaused:
      if (loading()) return JsonResponse(Json{{"is_paused", false}});
      return OfModel(query, [](const ServedModel& model) {
        const EngineStats stats = model.engine->Stats();
        return JsonResponse(Json{{"is_paused", IsPaused(stats.state, stats.sleep_level, stats.paused)}});
      });
    default:
      return ErrorResponse({500, "internal error", ""});
  }
}

HttpResponse ApiState::AnswerLifecycle(const RouteSpec& spec, absl::string_view query,
                                       absl::string_view body) const {
  return OfModel(query,
                 [&](const ServedModel& model) { return somnus::AnswerLifecycle(spec, model, query, body); });
}

}  // namespace somnus
