#pragma once
// The routes of both listeners. Pure functions.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

enum class Route {
  kModels,
  kModel,
  kCompletions,
  kChat,
  kResponses,
  kResponse,
  kDeleteResponse,
  kCancelResponse,
  kEmbeddings,
  kPooling,
  kTokenize,
  kDetokenize,
  kMessages,
  kCountTokens,
  kTokenizerInfo,
  kRenderChat,
  kRenderCompletion,
  kGenerateTokens,
  kPinPrefix,
  kPrefixes,
  kPrefix,
  kUnpinPrefix,
  kHealth,
  kReadyz,
  kLivez,
  kPing,
  kVersion,
  kServerInfo,
  kOpenApi,
  kLoad,
  kMetrics,
  kSleep,
  kWakeUp,
  kIsSleeping,
  kPause,
  kResume,
  kIsPaused,
  kResetPrefixCache,
  kTrace,
  kRequests,
  kRequest,
  kKvEvents,
  kAbortRequests,
  kCollectiveRpc,
  kRevive,
  kRoll,
  kAbortCall,
  kLoadAdapter,
  kUnloadAdapter,
  kReloadWeights,
  kUpdateWeightVersion,
  kWeightInfo,
  kWeightChecker,
  kReleaseKvCache,
  kResumeKvCache,
  kGetWorldSize,
  kStatus,
  kRoot,
  kConsoleFile,
  kResetOtherCache,  // of a cache that vLLM has, and this server does not
};

// Routes of embeddings.
inline bool Embeds(Route route) { return route == Route::kEmbeddings || route == Route::kPooling; }

// Routes whose responses wait for the engine's outputs.
inline bool Generates(Route route) {
  return route == Route::kCompletions || route == Route::kChat || route == Route::kResponses ||
         route == Route::kMessages || route == Route::kGenerateTokens || route == Route::kPinPrefix ||
         Embeds(route);
}

// Which key a route wants, where there is a key.
enum class RouteKey {
  kNone,       // probes and metrics
  kListeners,  // of the listener
  kClients,    // clients' key; on operators' listener the operators' key, where there is one
};

struct RouteSpec {
  Route route;
  const char* path;
  bool get, post;
  bool is_public;  // also on clients' listener; operators' has all, because many controllers know one address
  RouteKey key;
  bool json_body;
  bool counted;  // in http_requests_total
};

// Routes that change the engine and may block until all ranks have replied, or open requests have ended, and
// a route whose response is long in the making (lifecycle_routes.h).
inline bool IsLifecycle(Route route) {
  switch (route) {
    case Route::kSleep:
    case Route::kWakeUp:
    case Route::kPause:
    case Route::kResume:
    case Route::kResetPrefixCache:
    case Route::kAbortRequests:
    case Route::kCollectiveRpc:
    case Route::kRevive:
    case Route::kRoll:
    case Route::kAbortCall:
    case Route::kLoadAdapter:
    case Route::kUnloadAdapter:
    case Route::kReloadWeights:
    case Route::kUpdateWeightVersion:
    case Route::kWeightChecker:
    case Route::kReleaseKvCache:
    case Route::kResumeKvCache:
    case Route::kTrace:
    case Route::kStatus:
      return true;
    default:
      return false;
  }
}
// Routes that take too long for the I/O thread, but wait for no call.
inline bool WaitsForNobody(Route route) {
  return route == Route::kAbortRequests || route == Route::kTrace || route == Route::kUpdateWeightVersion ||
         route == Route::kMetrics || route == Route::kRequests || route == Route::kRequest;
}

struct RouteMatch {
  int status = 404;                 // 200, 204 (OPTIONS), 307 (trailing slash), 404 or 405
  const RouteSpec* spec = nullptr;  // with 200
  // 307: the location, with the query; 204 and 405: the allowed methods; kModel: the model's name; kPrefix
  // and kUnpinPrefix: the pin's id; kResponse, kDeleteResponse, kCancelResponse and kRequest: the response's
  // or the request's id; kConsoleFile: the file's name.
  std::string detail;
};

// The routes of a listener.
std::vector<const RouteSpec*> RoutesOf(bool admin);

RouteMatch MatchRoute(bool admin, absl::string_view method, absl::string_view target);

}  // namespace somnus
