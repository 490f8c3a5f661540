#include "coordinator/api/routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "coordinator/api/json_body.h"
#include "coordinator/api/lifecycle_calls.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr RouteSpec kRoutes[] = {
    //                                             get    post   infer  admin  key    json   counted
    {Route::kModels, "/v1/models", true, false, true, false, true, false, true},
    {Route::kCompletions, "/v1/completions", false, true, true, false, true, true, true},
    {Route::kChat, "/v1/chat/completions", false, true, true, false, true, true, true},
    {Route::kTokenize, "/tokenize", false, true, true, false, true, true, true},
    {Route::kDetokenize, "/detokenize", false, true, true, false, true, true, true},
    {Route::kHealth, "/health", true, false, true, true, false, false, false},
    {Route::kReadyz, "/readyz", true, false, true, true, false, false, false},
    {Route::kLivez, "/livez", true, false, true, true, false, false, false},
    {Route::kPing, "/ping", true, true, true, true, false, false, false},
    {Route::kVersion, "/version", true, false, true, true, true, false, false},
    {Route::kServerInfo, "/server_info", true, false, true, true, true, false, false},
    {Route::kLoad, "/load", true, false, true, true, true, false, false},
    {Route::kMetrics, "/metrics", true, false, true, true, false, false, false},
    {Route::kSleep, "/sleep", false, true, false, true, false, false, true},
    {Route::kWakeUp, "/wake_up", false, true, false, true, false, false, true},
    {Route::kIsSleeping, "/is_sleeping", true, false, false, true, false, false, false},
    {Route::kResetPrefixCache, "/reset_prefix_cache", false, true, false, true, false, false, true},
};
constexpr RouteSpec kModelRoute = {Route::kModel, "/v1/models/{model}", true, false, true, false, true, false,
                                   true};
constexpr absl::string_view kModelPrefix = "/v1/models/";

bool Allowed(const RouteSpec& spec, absl::string_view method) {
  return (method == "GET" && spec.get) || (method == "POST" && spec.post);
}

RouteMatch MatchSpec(const RouteSpec& spec, absl::string_view method, std::string detail) {
  if (Allowed(spec, method)) return {200, &spec, std::move(detail)};
  return {405, nullptr, spec.get && spec.post ? "GET, POST" : spec.get ? "GET" : "POST"};
}

const RouteSpec* FindRoute(bool admin, absl::string_view path) {
  for (const RouteSpec& spec : kRoutes) {
    if (path == spec.path && (admin ? spec.admin : spec.inference)) return &spec;
  }
  return nullptr;
}

std::string PercentDecode(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      out += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

HttpResponse JsonResponse(const Json& body) {
  return {200, "application/json", body.dump(-1, ' ', false, Json::error_handler_t::replace), {}};
}

Json ToJson(const TagBytes& bytes) {
  Json object = Json::object();
  for (const auto& [tag, count] : bytes) object[tag] = count;
  return object;
}

// What OpenAI's clients once looked at: everything that can be done here is allowed.
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

HttpResponse Loading() { return ErrorResponse({503, WhyNotReady(EngineState::kLoading), ""}); }

// The names in a query string, decoded, in order.
std::vector<std::string> QueryNames(absl::string_view query) {
  std::vector<std::string> names;
  for (const absl::string_view pair : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    names.push_back(PercentDecode(parts.first));
  }
  return names;
}

// What a lifecycle route takes; nullopt when nothing else was given.
std::optional<ApiError> CheckParameters(const RouteSpec& spec, absl::string_view query,
                                        absl::string_view body) {
  std::vector<absl::string_view> known;
  if (spec.route == Route::kSleep) known = {"level", "mode"};
  if (spec.route == Route::kWakeUp) known = {"tags"};
  const std::string takes =
      known.empty() ? "no parameters" : absl::StrCat(absl::StrJoin(known, " and "), " in the query");
  for (const std::string& name : QueryNames(query)) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string shown = CleanMessage(name);
    return BadRequest(shown,
                      absl::StrCat(shown, " is not a parameter of ", spec.path, ", which takes ", takes));
  }
  if (absl::StripAsciiWhitespace(body).empty()) return std::nullopt;
  const absl::StatusOr<nlohmann::json> object = ParseJsonObject(body, JsonLimits{.max_values = 1000});
  if (object.ok() && object->empty()) return std::nullopt;
  const std::string shown = object.ok() ? CleanMessage(object->begin().key()) : "body";
  return BadRequest(
      shown, absl::StrCat(shown, " is not understood: ", spec.path, " reads no body and takes ", takes));
}

HttpResponse SleepResponse(Engine* engine, absl::string_view query) {
  int level = 1;
  if (const auto levels = QueryValues(query, "level"); !levels.empty()) {
    if (!absl::SimpleAtoi(levels.back(), &level)) level = -1;
    if (const std::optional<ApiError> error = CheckSleepLevel(level)) return ErrorResponse(*error);
  }
  if (const auto modes = QueryValues(query, "mode"); !modes.empty() && modes.back() != "keep") {
    const bool known = modes.back() == "abort" || modes.back() == "wait";
    return ErrorResponse(BadRequest(
        "mode", known ? "only mode keep is supported: requests go on after waking" : "mode must be keep"));
  }
  const absl::StatusOr<SleepResult> result = SleepEngine(engine, level);
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", "sleeping"},
                           {"level", result->level},
                           {"already_asleep", result->already_asleep},
                           {"freed_bytes", ToJson(result->freed_bytes)}});
}

HttpResponse WakeUpResponse(Engine* engine, absl::string_view query) {
  const std::vector<std::string> tags = QueryValues(query, "tags");
  if (const std::optional<ApiError> error = CheckWakeUpTags(tags)) return ErrorResponse(*error);
  const absl::StatusOr<WakeUpResult> result = WakeUpEngine(engine, tags);
  if (!result.ok()) return ErrorResponse(FromStatus(result.status()));
  return JsonResponse(Json{{"status", result->awake ? "awake" : "sleeping"},
                           {"tags", tags.empty() ? Json(nullptr) : Json(tags)},
                           {"already_resident", result->already_resident},
                           {"mapped_bytes", ToJson(result->mapped_bytes)}});
}

}  // namespace

std::vector<std::string> QueryValues(absl::string_view query, absl::string_view name) {
  std::vector<std::string> values;
  for (const absl::string_view pair : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (PercentDecode(parts.first) == name) values.push_back(PercentDecode(parts.second));
  }
  return values;
}

RouteMatch MatchRoute(bool admin, absl::string_view method, absl::string_view target) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  const absl::string_view path = parts.first;
  if (const RouteSpec* spec = FindRoute(admin, path)) return MatchSpec(*spec, method, "");
  if (!path.empty() && path.back() == '/') {
    const absl::string_view bare = path.substr(0, path.size() - 1);
    if (FindRoute(admin, bare) != nullptr) return {307, nullptr, std::string(bare)};
  }
  if (!admin && absl::StartsWith(path, kModelPrefix) && path.size() > kModelPrefix.size()) {
    return MatchSpec(kModelRoute, method, PercentDecode(path.substr(kModelPrefix.size())));
  }
  return {404, nullptr, ""};
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{error.status, "application/json", ErrorBody(error), {}};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiState::ApiState(ApiServerOptions options_in, std::shared_ptr<Metrics> metrics_in)
    : options(std::move(options_in)),
      metrics(std::move(metrics_in)),
      created(absl::ToUnixSeconds(absl::Now())) {}

bool ApiState::Authorized(absl::string_view authorization) const {
  return BearerMatches(authorization, options.api_key);
}

EngineStats ApiState::Stats() const {
  const std::shared_ptr<const ServedModel> served = model();
  return served == nullptr ? EngineStats{} : served->engine->Stats();
}

HttpResponse ApiState::Models(absl::string_view name) const {
  const std::shared_ptr<const ServedModel> served = model();
  if (served == nullptr) return Loading();
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

// By one address a client learns the others.
HttpResponse ApiState::ServerInfo() const {
  const std::shared_ptr<const ServedModel> served = model();
  return JsonResponse(Json{{"version", options.version},
                           {"model", served == nullptr ? Json(nullptr) : Json(served->name)},
                           {"http_port", http_port},
                           {"admin_port", admin_port},
                           {"grpc_port", options.grpc_port == 0 ? Json(nullptr) : Json(options.grpc_port)}});
}

HttpResponse ApiState::Health() const {
  const std::shared_ptr<const ServedModel> served = model();
  if (served == nullptr) return Loading();
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
  const std::shared_ptr<const ServedModel> served = model();
  const EngineState state = served == nullptr ? EngineState::kLoading : served->engine->state();
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
    case Route::kIsSleeping:
      return JsonResponse(Json{{"is_sleeping", IsSleeping(state)}});
    default:
      return ErrorResponse({500, "internal error", ""});
  }
}

HttpResponse ApiState::AnswerLifecycle(const RouteSpec& spec, absl::string_view query,
                                       absl::string_view body) const {
  const std::shared_ptr<const ServedModel> served = model();
  if (served == nullptr) return Loading();
  if (const auto error = CheckParameters(spec, query, body)) return ErrorResponse(*error);
  if (spec.route == Route::kSleep) return SleepResponse(served->engine.get(), query);
  if (spec.route == Route::kWakeUp) return WakeUpResponse(served->engine.get(), query);
  const absl::Status status = served->engine->ResetPrefixCache();
  if (!status.ok()) return ErrorResponse(FromStatus(status));
  return JsonResponse(Json{{"success", true}});
}

}  // namespace somnus
