#include "coordinator/api/api_state.h"

#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "coordinator/api/api_key.h"
#include "coordinator/api/lifecycle_routes.h"

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

EngineStats ApiState::Stats() const {
  const std::shared_ptr<const ServedModel> served = model();
  return served == nullptr ? EngineStats{} : served->engine->Stats();
}

HttpResponse ApiState::Models(absl::string_view name) const {
  const std::shared_ptr<const ServedModel> served = model();
  if (served == nullptr) return LoadingResponse();
  const Json card = {{"id", served->name},
                     {"object", "model"},
                     {"created", created},
                     {"owned_by", "somnus"},
                     {"root", served->name},
                     {"parent", nullptr},
                     {"max_model_len", served->engine->max_model_len()},
                     {"permission", Json::array({Permission(created)})}};
  if (name.empty()) return JsonResponse(Json{{"object", "list"}, {"data", Json::array({card})}});
  if (name == served->name) return JsonResponse(card);
  return ErrorResponse({404, "The model does not exist.", "model"});
}

// A client that has one address learns the others from it.
HttpResponse ApiState::ServerInfo() const {
  const std::shared_ptr<const ServedModel> served = model();
  const int64_t version = Stats().weights_version;
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
  const std::shared_ptr<const ServedModel> served = model();
  if (served == nullptr) return LoadingResponse();
  const absl::Status health = served->engine->Health();
  if (health.ok()) return {200, "", "", {}};
  return ErrorResponse({503, CleanMessage(health.message()), ""});
}

HttpResponse ApiState::Livez() const {
  const std::shared_ptr<const ServedModel> served = model();
  if (served == nullptr || IsLive(served->engine->state())) return {200, "", "", {}};
  return ErrorResponse({503, CleanMessage(served->engine->Health().message()), ""});
}

HttpResponse ApiState::Answer(const RouteMatch& match) const {
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
      return {200, "text/plain; version=0.0.4; charset=utf-8", metrics->Serialize(Stats()), {}};
    case Route::kIsSleeping: {
      const EngineStats stats = Stats();
      return JsonResponse(Json{{"is_sleeping", IsSleeping(stats.state, stats.sleep_level, stats.paused)}});
    }
    case Route::kIsPaused: {
      const EngineStats stats = Stats();
      return JsonResponse(Json{{"is_paused", IsPaused(stats.state, stats.sleep_level, stats.paused)}});
    }
    default:
      return ErrorResponse({500, "internal error", ""});
  }
}

HttpResponse ApiState::AnswerLifecycle(const RouteSpec& spec, absl::string_view query,
                                       absl::string_view body) const {
  const std::shared_ptr<const ServedModel> served = model();
  return served == nullptr ? LoadingResponse()
                           : somnus::AnswerLifecycle(spec, *served, options.rank_status, query, body);
}

}  // namespace somnus
