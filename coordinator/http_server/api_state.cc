#include "coordinator/http_server/api_state.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/console/console.h"
#include "coordinator/http/json_body.h"
#include "coordinator/http/query_string.h"
#include "coordinator/http_server/openapi.h"
#include "coordinator/openai/grammar_request.h"
#include "coordinator/operators/lifecycle_routes.h"
#include "coordinator/operators/prefix_routes.h"
#include "coordinator/operators/request_routes.h"
#include "coordinator/responses/stored_routes.h"
#include "coordinator/token_routes/tokenizer_info.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

// Older OpenAI clients read this object. The object allows everything that this server can do.
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

// As JSON, or as text: "name=value, name=value". Null: not known.
Json ConfigJson(const std::string& engine_config, bool as_text) {
  if (engine_config.empty()) return nullptr;
  Json config = Json::parse(engine_config);
  if (!as_text) return config;
  std::string text;
  for (const auto& [part, settings] : config.items()) {
    for (const auto& [name, value] : settings.items())
      absl::StrAppend(&text, text.empty() ? "" : ", ", name, "=", value.dump());
  }
  return text;
}

AdapterNumbers CountAdapters(const AdapterRegistry& registry) {
  AdapterNumbers numbers = {.max_loras = registry.max_loras(), .num_reads_again = registry.num_reads_again()};
  for (const AdapterCard& adapter : registry.List()) {
    ++(adapter.held ? numbers.num_held : numbers.num_forgotten);
    if (adapter.num_running > 0) numbers.running.push_back(adapter.name);
    if (adapter.num_waiting > 0) numbers.waiting.push_back(adapter.name);
  }
  return numbers;
}

HttpResponse NoModel(absl::string_view name, const std::vector<SharedModel>& models) {
  return ErrorResponse(UnknownModel(name, ModelNames(models)));
}

// The host names of operators' listener: the names that flags give, and this machine's own host name.
std::vector<std::string> OwnNames(const ApiServerOptions& options) {
  std::vector<std::string> names = options.admin_allowed_hosts;
  names.push_back(options.admin_host);
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) == 0) names.emplace_back(name);
  return names;
}

}  // namespace

ApiState::ApiState(ApiServerOptions options_in, std::shared_ptr<Metrics> metrics_in)
    : options(std::move(options_in)),
      metrics(std::move(metrics_in)),
      created(absl::ToUnixSeconds(absl::Now())),
      cors(options.cors),
      responses(std::make_shared<ResponseStore>(options.limits.max_stored_responses,
                                                options.limits.max_stored_response_bytes)),
      guard_(OwnNames(options)),
      models_(options.starting),
      call_bounds_(options.limits.max_lifecycle_calls),
      status_(&models_, options.version) {}

const ApiKeys& ApiState::KeysOf(bool admin, RouteKey key) const {
  const bool operators = admin && (key == RouteKey::kListeners || !options.admin_api_keys.empty());
  return operators ? options.admin_api_keys : options.api_keys;
}

bool ApiState::IsForOperators(bool admin, absl::string_view method, absl::string_view target) const {
  if (admin || !options.operators_on_port) return admin;
  return MatchRoute(false, method, target).status == 404 && MatchRoute(true, method, target).status != 404;
}

bool ApiState::Authorized(bool admin, RouteKey key, absl::string_view authorization) const {
  if (key == RouteKey::kNone) return true;
  const ApiKeys& keys = KeysOf(admin, key);
  if (admin && key == RouteKey::kClients && keys.empty()) return options.tls.authority.empty();
  return keys.Opens(authorization);
}

std::optional<ApiError> ApiState::RefuseWebPage(bool admin, RouteKey key, const PageMarks& marks) const {
  // Probes use any host name, and a web page cannot read the response to a probe.
  if (!admin || key == RouteKey::kNone || !KeysOf(admin, key).empty()) return std::nullopt;
  return guard_.Check(marks);
}

void ApiState::SetModels(std::vector<ServedModel> models) {
  for (ServedModel& model : models) {
    if (model.metrics == nullptr) model.metrics = metrics;
  }
  models_.Set(std::move(models));
}

SharedModel ApiState::ModelOf(absl::string_view body) const {
  if (models_.HasSeveralNames()) {
    const ApiLimits& limits = options.limits;
    const std::string name = FindModelName(body, {limits.max_json_depth, limits.max_json_values});
    if (SharedModel model = models_.Find(name)) return model;
  }
  return models_.Get();
}

std::string ApiState::MetricsText() const {
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return metrics->Serialize(EngineStats{});
  // The metrics of all models are in one registry.
  for (const SharedModel& model : models) {
    model->metrics->Update(model->engine->Stats());
    if (model->adapters != nullptr) model->metrics->UpdateAdapters(CountAdapters(*model->adapters));
    if (model->grammars != nullptr) model->metrics->UpdateGrammars(CountGrammars(*model->grammars));
  }
  return metrics->Serialize();
}

HttpResponse ApiState::Models(absl::string_view name) const {
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return LoadingResponse();
  Json cards = Json::array();
  const auto add = [&](const ServedModel& model, const std::string& id, const std::string& root,
                       const Json& parent) {
    Json card = {{"id", id},
                 {"object", "model"},
                 {"created", created},
                 {"owned_by", "somnus"},
                 {"root", root},
                 {"parent", parent},
                 {"max_model_len", model.engine->max_model_len()},
                 {"permission", Json::array({Permission(created)})}};
    if (models.size() > 1) card["state"] = EngineStateName(model.engine->state());
    if (name.empty() || name == id) cards.push_back(std::move(card));
  };
  for (const SharedModel& model : models) {
    add(*model, model->name, model->name, nullptr);
    for (const std::string& alias : model->aliases) add(*model, alias, model->name, nullptr);
    if (model->adapters == nullptr) continue;
    for (const AdapterCard& adapter : model->adapters->List())
      add(*model, adapter.name, adapter.path, model->name);
  }
  if (!name.empty() && !cards.empty()) return JsonResponse(cards[0]);
  if (name.empty()) return JsonResponse(Json{{"object", "list"}, {"data", std::move(cards)}});
  return NoModel(name, models);
}

// A client that has one address learns the remaining addresses from the answer, also while models load.
HttpResponse ApiState::ServerInfo(bool admin, absl::string_view query) const {
  const std::vector<std::string> formats = QueryValues(query, "config_format");
  const std::string format = formats.empty() ? "text" : formats.back();
  if (admin && format != "text" && format != "json")
    return ErrorResponse(BadRequest("config_format", "config_format must be text or json"));
  SharedModel served = models_.Get();
  if (const std::vector<std::string> names = QueryValues(query, "model"); !loading() && !names.empty()) {
    served = models_.Find(names.back());
    if (served == nullptr) return NoModel(names.back(), models_.All());
  }
  const int64_t version = served == nullptr ? 0 : served->engine->Stats().weights_version;
  Json info = {{"version", options.version},
               {"model", served == nullptr ? Json(nullptr) : Json(served->name)},
               {"weight_version", version == 0 ? Json(nullptr) : Json(version)},
               {"http_port", http_port},
               {"admin_port", admin_port},
               {"grpc_port", PortOrNull(options.grpc_port)},
               {"control_port", PortOrNull(options.control_port)},
               {"tls", !options.tls.certificate.empty()},
               {"admin_tls", !options.admin_tls.certificate.empty()}};
  if (admin)
    info["vllm_config"] =
        served == nullptr ? Json(nullptr) : ConfigJson(served->engine_config, format == "text");
  return JsonResponse(info);
}

// Before an engine is asked: a loop that hangs may hold the engine's lock.
std::optional<HttpResponse> ApiState::LoopHangs() const {
  const absl::Status alive = options.heartbeats->Check();
  if (alive.ok()) return std::nullopt;
  return ErrorResponse({503, CleanMessage(alive.message()), ""});
}

HttpResponse ApiState::Health(absl::string_view query) const {
  if (std::optional<HttpResponse> hangs = LoopHangs()) return *std::move(hangs);
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return LoadingResponse();
  const std::vector<std::string> names = QueryValues(query, "model");
  std::vector<SharedModel> asked = models;
  if (!names.empty()) {
    SharedModel named = models_.Find(names.back());
    if (named == nullptr) return NoModel(names.back(), models);
    asked = {std::move(named)};
  }
  for (const SharedModel& model : asked) {
    const absl::Status health = model->engine->Health();
    if (health.ok()) continue;
    const std::string whose = models.size() > 1 ? absl::StrCat(model->name, ": ") : "";
    return ErrorResponse({503, CleanMessage(absl::StrCat(whose, health.message())), ""});
  }
  return {200, "", "", {}};
}

HttpResponse ApiState::Livez() const {
  if (std::optional<HttpResponse> hangs = LoopHangs()) return *std::move(hangs);
  const std::vector<SharedModel> models = models_.All();
  for (const SharedModel& model : models) {
    if (IsLive(model->engine->state())) return {200, "", "", {}};
  }
  if (models.empty()) return {200, "", "", {}};
  return ErrorResponse({503, CleanMessage(models.front()->engine->Health().message()), ""});
}

std::variant<SharedModel, HttpResponse> ApiState::Named(const std::vector<std::string>& names) const {
  const std::vector<SharedModel> models = models_.All();
  if (models.empty()) return LoadingResponse();
  if (names.empty() && models.size() == 1) return models.front();
  if (names.empty())
    return ErrorResponse(BadRequest("model", absl::StrCat("several models are served (", ModelNames(models),
                                                          "): ?model= says which is meant")));
  if (SharedModel model = models_.Find(names.back())) return model;
  return NoModel(names.back(), models);
}

HttpResponse ApiState::OfModel(const std::vector<std::string>& names,
                               const std::function<HttpResponse(const ServedModel&)>& answer) const {
  std::variant<SharedModel, HttpResponse> named = Named(names);
  if (auto* error = std::get_if<HttpResponse>(&named)) return std::move(*error);
  return answer(*std::get<SharedModel>(named));
}

HttpResponse ApiState::Answer(bool admin, const RouteMatch& match, absl::string_view query) const {
  switch (match.spec->route) {
    case Route::kModels:
    case Route::kModel:
      return Models(match.detail);
    case Route::kPrefixes:
    case Route::kPrefix:
    case Route::kUnpinPrefix:
      if (loading()) return LoadingResponse();
      return AnswerPrefixes(models_.All(), match, query);
    case Route::kResponse:
    case Route::kDeleteResponse:
    case Route::kCancelResponse:
      return AnswerStoredResponse(models_.All(), match, query, responses.get());
    case Route::kRequests:
    case Route::kRequest:
      if (loading()) return LoadingResponse();
      return AnswerRequests(models_.All(), match, query);
    case Route::kHealth:
    case Route::kReadyz:
    case Route::kPing:
      return Health(query);
    case Route::kLivez:
      return Livez();
    case Route::kVersion:
      return JsonResponse(Json{{"version", options.version.empty() ? "0" : options.version}});
    case Route::kServerInfo:
      return ServerInfo(admin, query);
    case Route::kOpenApi:
      return JsonResponse(OpenApi(admin || options.operators_on_port,
                                  options.version.empty() ? "0" : options.version, options.root_path));
    case Route::kLoad:
      return JsonResponse(Json{{"server_load", load.load()}});
    case Route::kMetrics:
      return {200, "text/plain; version=0.0.4; charset=utf-8", MetricsText(), {}};
    case Route::kIsSleeping:
      return OfModel(QueryValues(query, "model"), [](const ServedModel& model) {
        const EngineStats stats = model.engine->Stats();
        return JsonResponse(Json{{"is_sleeping", IsSleeping(stats.state, stats.sleep_level, stats.paused)}});
      });
    case Route::kIsPaused:
      return OfModel(QueryValues(query, "model"), [](const ServedModel& model) {
        const EngineStats stats = model.engine->Stats();
        return JsonResponse(Json{{"is_paused", IsPaused(stats.state, stats.sleep_level, stats.paused)}});
      });
    case Route::kWeightInfo:
      return OfModel(QueryValues(query, "model"), [](const ServedModel& model) {
        const int64_t version = model.engine->Stats().weights_version;
        return JsonResponse(Json{
            {"weight_version", version == 0 ? Json(nullptr) : Json(model.weight_labels->NameOf(version))}});
      });
    case Route::kTokenizerInfo:
      if (!options.tokenizer_info)
        return ErrorResponse({404, "/tokenizer_info needs --enable-tokenizer-info-endpoint", ""});
      return OfModel(QueryValues(query, "model"),
                     [](const ServedModel& model) { return JsonResponse(TokenizerInfo(model)); });
    case Route::kGetWorldSize:
      return WorldSize(*match.spec, query);
    case Route::kResetOtherCache:
      return {200, "", "", {}};
    default:
      return ErrorResponse({500, "internal error", ""});
  }
}

HttpResponse ApiState::AnswerConsole(bool admin, const RouteMatch& match, absl::string_view accept,
                                     absl::string_view if_none_match) const {
  if (match.spec->route == Route::kRoot) {
    if (options.console && PrefersPage(accept)) return ConsolePage(admin, if_none_match);
    return RootPointer(admin, options.console);
  }
  if (options.console) {
    if (std::optional<HttpResponse> file = ConsoleFile(admin, match.detail, if_none_match)) return *file;
  }
  return ErrorResponse({404, "The console has no such file.", ""});
}

HttpResponse ApiState::WorldSize(const RouteSpec& spec, absl::string_view query) const {
  const std::variant<LifecycleParameters, ApiError> read = ReadParameters(spec, query, "");
  if (const auto* error = std::get_if<ApiError>(&read)) return ErrorResponse(*error);
  const auto& parameters = std::get<LifecycleParameters>(read);
  bool of_all_replicas = true;
  if (const auto error = parameters.ReadBool("include_dp", &of_all_replicas)) return ErrorResponse(*error);
  return OfModel(parameters.Values("model"), [&](const ServedModel& model) {
    const size_t num_replicas = std::max<size_t>(1, model.engine->Stats().replicas.size());
    return JsonResponse(
        Json{{"world_size", model.world_size * static_cast<int64_t>(of_all_replicas ? num_replicas : 1)}});
  });
}

HttpResponse ApiState::AnswerLifecycle(const RouteSpec& spec, absl::string_view query,
                                       absl::string_view body) const {
  if (spec.route == Route::kStatus) {
    const std::vector<std::string> names = QueryValues(query, "model");
    return status_.Respond(names.empty() ? "" : names.back());
  }
  if (loading()) return LoadingResponse();
  const std::variant<LifecycleParameters, ApiError> read = ReadParameters(spec, query, body);
  if (const auto* error = std::get_if<ApiError>(&read)) return ErrorResponse(*error);
  const auto& parameters = std::get<LifecycleParameters>(read);
  return OfModel(parameters.Values("model"), [&](const ServedModel& model) {
    if (WaitsForNobody(spec.route)) return somnus::AnswerLifecycle(spec, models_, model, parameters, body);
    const absl::StatusOr<CallBounds::Place> place = call_bounds_.Enter(spec.path, model.name);
    if (!place.ok()) return ErrorResponse(FromStatus(place.status()));
    return somnus::AnswerLifecycle(spec, models_, model, parameters, body);
  });
}

}  // namespace somnus
