#include "coordinator/http/routes.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/http/query_string.h"

namespace somnus {
namespace {

constexpr RouteSpec kRoutes[] = {
    //                                             get    post   public key                  json   counted
    {Route::kModels, "/v1/models", true, false, true, RouteKey::kClients, false, true},
    {Route::kCompletions, "/v1/completions", false, true, true, RouteKey::kClients, true, true},
    {Route::kChat, "/v1/chat/completions", false, true, true, RouteKey::kClients, true, true},
    {Route::kResponses, "/v1/responses", false, true, true, RouteKey::kClients, true, true},
    {Route::kEmbeddings, "/v1/embeddings", false, true, true, RouteKey::kClients, true, true},
    {Route::kPooling, "/pooling", false, true, true, RouteKey::kClients, true, true},
    {Route::kTokenize, "/tokenize", false, true, true, RouteKey::kClients, true, true},
    {Route::kDetokenize, "/detokenize", false, true, true, RouteKey::kClients, true, true},
    {Route::kMessages, "/v1/messages", false, true, true, RouteKey::kClients, true, true},
    {Route::kCountTokens, "/v1/messages/count_tokens", false, true, true, RouteKey::kClients, true, true},
    {Route::kTokenizerInfo, "/tokenizer_info", true, false, true, RouteKey::kClients, false, true},
    {Route::kRenderChat, "/v1/chat/completions/render", false, true, true, RouteKey::kClients, true, true},
    {Route::kRenderCompletion, "/v1/completions/render", false, true, true, RouteKey::kClients, true, true},
    {Route::kGenerateTokens, "/inference/v1/generate", false, true, true, RouteKey::kClients, true, true},
    {Route::kHealth, "/health", true, false, true, RouteKey::kNone, false, false},
    {Route::kReadyz, "/readyz", true, false, true, RouteKey::kNone, false, false},
    {Route::kLivez, "/livez", true, false, true, RouteKey::kNone, false, false},
    {Route::kPing, "/ping", true, true, true, RouteKey::kNone, false, false},
    {Route::kVersion, "/version", true, false, true, RouteKey::kListeners, false, false},
    {Route::kServerInfo, "/server_info", true, false, true, RouteKey::kListeners, false, false},
    {Route::kOpenApi, "/openapi.json", true, false, true, RouteKey::kListeners, false, false},
    {Route::kLoad, "/load", true, false, true, RouteKey::kListeners, false, false},
    {Route::kMetrics, "/metrics", true, false, true, RouteKey::kNone, false, false},
    {Route::kSleep, "/sleep", false, true, false, RouteKey::kListeners, false, true},
    {Route::kWakeUp, "/wake_up", false, true, false, RouteKey::kListeners, false, true},
    {Route::kIsSleeping, "/is_sleeping", true, false, false, RouteKey::kListeners, false, false},
    {Route::kPause, "/pause", false, true, false, RouteKey::kListeners, false, true},
    {Route::kResume, "/resume", false, true, false, RouteKey::kListeners, false, true},
    {Route::kIsPaused, "/is_paused", true, false, false, RouteKey::kListeners, false, false},
    {Route::kAbortRequests, "/abort_requests", false, true, false, RouteKey::kListeners, false, true},
    {Route::kCollectiveRpc, "/collective_rpc", false, true, false, RouteKey::kListeners, false, true},
    {Route::kResetPrefixCache, "/reset_prefix_cache", false, true, false, RouteKey::kListeners, false, true},
    {Route::kTrace, "/trace", true, false, false, RouteKey::kListeners, false, false},
    {Route::kRequests, "/requests", true, false, false, RouteKey::kListeners, false, false},
    {Route::kKvEvents, "/kv_events", true, false, false, RouteKey::kListeners, false, false},
    {Route::kRevive, "/revive", false, true, false, RouteKey::kListeners, false, true},
    {Route::kRoll, "/roll", false, true, false, RouteKey::kListeners, false, true},
    {Route::kAbortCall, "/abort_call", false, true, false, RouteKey::kListeners, false, true},
    {Route::kLoadAdapter, "/v1/load_lora_adapter", false, true, false, RouteKey::kListeners, false, true},
    {Route::kUnloadAdapter, "/v1/unload_lora_adapter", false, true, false, RouteKey::kListeners, false, true},
    {Route::kReloadWeights, "/reload_weights", false, true, false, RouteKey::kListeners, false, true},
    {Route::kUpdateWeightVersion, "/update_weight_version", false, true, false, RouteKey::kListeners, false,
     true},
    {Route::kWeightInfo, "/weight_info", true, false, false, RouteKey::kListeners, false, false},
    {Route::kWeightChecker, "/weight_checker", false, true, false, RouteKey::kListeners, false, true},
    {Route::kReleaseKvCache, "/release_kv_cache_memory", false, true, false, RouteKey::kListeners, false,
     true},
    {Route::kResumeKvCache, "/resume_kv_cache_memory", false, true, false, RouteKey::kListeners, false, true},
    {Route::kStatus, "/status", true, false, false, RouteKey::kListeners, false, false},
    {Route::kRoot, "/", true, false, true, RouteKey::kNone, false, false},
    {Route::kGetWorldSize, "/get_world_size", true, false, false, RouteKey::kListeners, false, false},
    {Route::kResetOtherCache, "/reset_mm_cache", false, true, false, RouteKey::kListeners, false, true},
    {Route::kResetOtherCache, "/reset_encoder_cache", false, true, false, RouteKey::kListeners, false, true},
};
// The page of people who come with a browser, and its files.
constexpr RouteSpec kConsoleRoute = {
    Route::kConsoleFile, "/console/{file}", true, false, true, RouteKey::kNone, false, false};
constexpr absl::string_view kConsolePath = "/console/";
constexpr RouteSpec kModelRoute = {Route::kModel, "/v1/models/{model}", true,  false,
                                   true,          RouteKey::kClients,   false, true};
constexpr absl::string_view kModelPrefix = "/v1/models/";

// Routes that share a path, each with a method of its own.
constexpr absl::string_view kPrefixesPath = "/v1/prefixes";
constexpr RouteSpec kListPrefixes = {Route::kPrefixes,   "/v1/prefixes", true, false, true,
                                     RouteKey::kClients, false,          true};
constexpr RouteSpec kPinPrefix = {Route::kPinPrefix,  "/v1/prefixes", false, true, true,
                                  RouteKey::kClients, true,           true};
constexpr RouteSpec kGetPrefix = {Route::kPrefix, "/v1/prefixes/{id}", true,  false,
                                  true,           RouteKey::kClients,  false, true};
constexpr RouteSpec kUnpinPrefix = {
    Route::kUnpinPrefix, "/v1/prefixes/{id}", false, false, true, RouteKey::kClients, false, true};

constexpr absl::string_view kResponsesPath = "/v1/responses/";
constexpr absl::string_view kCancel = "/cancel";
constexpr RouteSpec kGetResponse = {
    Route::kResponse, "/v1/responses/{id}", true, false, true, RouteKey::kClients, false, true};
constexpr RouteSpec kDeleteResponse = {
    Route::kDeleteResponse, "/v1/responses/{id}", false, false, true, RouteKey::kClients, false, true};
constexpr RouteSpec kCancelResponse = {
    Route::kCancelResponse, "/v1/responses/{id}/cancel", false, true, true, RouteKey::kClients, false, true};

constexpr absl::string_view kRequestPrefix = "/requests/";
constexpr RouteSpec kRequest = {Route::kRequest, "/requests/{id}",     true,  false,
                                false,           RouteKey::kListeners, false, false};

// The response to HEAD is the response to GET without the body.
bool IsGet(absl::string_view method) { return method == "GET" || method == "HEAD"; }

bool Allowed(const RouteSpec& spec, absl::string_view method) {
  return (IsGet(method) && spec.get) || (method == "POST" && spec.post);
}

// `allowed`: the methods of a path besides OPTIONS, which every path has.
RouteMatch NoMethod(absl::string_view method, absl::string_view allowed) {
  return {method == "OPTIONS" ? 204 : 405, nullptr, absl::StrCat(allowed, ", OPTIONS")};
}

RouteMatch MatchSpec(const RouteSpec& spec, absl::string_view method, std::string detail) {
  if (Allowed(spec, method)) return {200, &spec, std::move(detail)};
  return NoMethod(method, spec.get && spec.post ? "GET, HEAD, POST" : spec.get ? "GET, HEAD" : "POST");
}

const RouteSpec* FindRoute(bool admin, absl::string_view path) {
  for (const RouteSpec& spec : kRoutes) {
    if (path == spec.path && (admin || spec.is_public)) return &spec;
  }
  return nullptr;
}

// `id`: the text after the path of all pins.
RouteMatch MatchPrefix(absl::string_view method, absl::string_view id) {
  if (id.empty() && method == "POST") return {200, &kPinPrefix, ""};
  if (IsGet(method)) return {200, id.empty() ? &kListPrefixes : &kGetPrefix, DecodePath(id)};
  if (!id.empty() && method == "DELETE") return {200, &kUnpinPrefix, DecodePath(id)};
  return NoMethod(method, id.empty() ? "GET, HEAD, POST" : "GET, HEAD, DELETE");
}

// `rest`: the text after the path of all responses, which is not empty.
RouteMatch MatchResponse(absl::string_view method, absl::string_view rest) {
  const bool cancels = absl::ConsumeSuffix(&rest, kCancel);
  if (rest.empty() || absl::StrContains(rest, '/')) return {404, nullptr, ""};
  if (cancels) return MatchSpec(kCancelResponse, method, DecodePath(rest));
  if (IsGet(method)) return {200, &kGetResponse, DecodePath(rest)};
  if (method == "DELETE") return {200, &kDeleteResponse, DecodePath(rest)};
  return NoMethod(method, "GET, HEAD, DELETE");
}

}  // namespace

std::vector<const RouteSpec*> RoutesOf(bool admin) {
  std::vector<const RouteSpec*> routes;
  for (const RouteSpec& spec : kRoutes) {
    if (admin || spec.is_public) routes.push_back(&spec);
  }
  for (const RouteSpec* spec : {&kConsoleRoute, &kModelRoute, &kListPrefixes, &kPinPrefix, &kGetPrefix,
                                &kUnpinPrefix, &kGetResponse, &kDeleteResponse, &kCancelResponse})
    routes.push_back(spec);
  if (admin) routes.push_back(&kRequest);
  return routes;
}

RouteMatch MatchRoute(bool admin, absl::string_view method, absl::string_view target) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  const absl::string_view path = parts.first;
  if (path == "*" && method == "OPTIONS") return NoMethod(method, "GET, HEAD, POST, DELETE");
  if (const RouteSpec* spec = FindRoute(admin, path)) return MatchSpec(*spec, method, "");
  if (path == kPrefixesPath) return MatchPrefix(method, "");
  if (!path.empty() && path.back() == '/') {
    const absl::string_view bare = path.substr(0, path.size() - 1);
    const absl::string_view query = target.substr(path.size());  // with its '?'
    if (FindRoute(admin, bare) != nullptr || bare == kPrefixesPath)
      return {307, nullptr, absl::StrCat(bare, query)};
  }
  if (absl::StartsWith(path, kModelPrefix) && path.size() > kModelPrefix.size()) {
    return MatchSpec(kModelRoute, method, DecodePath(path.substr(kModelPrefix.size())));
  }
  if (absl::StartsWith(path, kPrefixesPath) && path[kPrefixesPath.size()] == '/')
    return MatchPrefix(method, path.substr(kPrefixesPath.size() + 1));
  if (absl::StartsWith(path, kConsolePath))
    return MatchSpec(kConsoleRoute, method, std::string(path.substr(kConsolePath.size())));
  if (absl::StartsWith(path, kResponsesPath))
    return MatchResponse(method, path.substr(kResponsesPath.size()));
  if (admin && absl::StartsWith(path, kRequestPrefix) && path.size() > kRequestPrefix.size())
    return MatchSpec(kRequest, method, DecodePath(path.substr(kRequestPrefix.size())));
  return {404, nullptr, ""};
}

}  // namespace somnus
