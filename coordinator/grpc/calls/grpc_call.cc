#include "coordinator/grpc/calls/grpc_call.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/grpc/calls/error_details.h"
#include "coordinator/http/api_key.h"
#include "coordinator/residency/engine_state.h"
#include "proto/missing_memory.h"
#include "proto/status.h"

namespace somnus {
namespace {

// Trailers are bounded: clients take 8 KiB, and base64 adds a third.
constexpr int kMaxShortages = 64;

// The shortages of most bytes, in their former order.
v1::MissingMemory LargestOf(v1::MissingMemory missing) {
  if (missing.shortages_size() <= kMaxShortages) return missing;
  std::vector<int64_t> bytes;
  for (const v1::MissingMemory::Shortage& one : missing.shortages()) bytes.push_back(one.missing_bytes());
  std::nth_element(bytes.begin(), bytes.begin() + kMaxShortages - 1, bytes.end(), std::greater<>());
  const int64_t least = bytes[kMaxShortages - 1];
  v1::MissingMemory largest;
  for (const v1::MissingMemory::Shortage& one : missing.shortages()) {
    if (one.missing_bytes() >= least && largest.shortages_size() < kMaxShortages)
      *largest.add_shortages() = one;
  }
  return largest;
}

}  // namespace

absl::string_view AuthorizationOf(const grpc::ServerContext& context) {
  const auto it = context.client_metadata().find("authorization");
  return it == context.client_metadata().end() ? absl::string_view()
                                               : absl::string_view(it->second.data(), it->second.size());
}

grpc::Status CheckKey(const grpc::ServerContext& context, const ApiKeys& api_keys) {
  if (api_keys.Opens(AuthorizationOf(context))) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, "Unauthorized"};
}

grpc::Status ToGrpcStatus(const ApiError& error) {
  const std::string message = MessageWithParam(error);
  switch (error.status) {
    case 400: {
      const grpc::Status status(grpc::StatusCode::INVALID_ARGUMENT, message);
      return error.param.empty() ? status : WithField(status, error.param, error.message);
    }
    case 404:
      return {grpc::StatusCode::NOT_FOUND, message};
    case 503:
      return WithRetry({grpc::StatusCode::UNAVAILABLE, message}, kRetryDelay);
    default:
      return {grpc::StatusCode::INTERNAL, message};
  }
}

grpc::Status LoadingStatus(const ModelTable& models) {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, CleanMessage(models.Starting().Line()));
  return WithReason(status, EngineState::kLoading);
}

grpc::Status TooManyCalls() {
  return WithRetry({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many open calls"}, kRetryDelay);
}

// gRPC writes a peer as "ipv4:127.0.0.1:4711", with the brackets of an IPv6 address escaped.
std::string PeerOf(const grpc::ServerContext& context) {
  const std::string peer = context.peer();
  const absl::string_view address = absl::StripPrefix(absl::StripPrefix(peer, "ipv4:"), "ipv6:");
  return absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}});
}

Caller CallerOf(grpc::ServerContext* context, const ApiKeys& api_keys) {
  return {.name = NamedClient(api_keys.NameOf(AuthorizationOf(*context)), PeerOf(*context) + " (gRPC)"),
          .has_left = [context] { return context->IsCancelled(); }};
}

grpc::Status FindModel(const ModelTable& models, const std::string& name, SharedModel* model) {
  const std::vector<SharedModel> all = models.All();
  if (all.empty()) return LoadingStatus(models);
  if (name.empty() && all.size() > 1)
    return {
        grpc::StatusCode::INVALID_ARGUMENT,
        absl::StrCat("model: several models are served (", ModelNames(all), "); name the one that is meant")};
  *model = name.empty() ? all.front() : models.Find(name);
  if (*model == nullptr) return ToGrpcStatus(UnknownModel(name, ModelNames(all)));
  return grpc::Status::OK;
}

grpc::Status EngineRefusal(const absl::Status& status, const Engine& engine) {
  const absl::Status clean(status.code(), CleanMessage(status.message()));
  const grpc::Status refusal = ToGrpcStatus(WithMissing(clean, LargestOf(MissingOf(status))));
  if (absl::IsResourceExhausted(status)) return WithRetry(refusal, kRetryDelay);
  if (!absl::IsUnavailable(status) && !absl::IsFailedPrecondition(status)) return refusal;
  const EngineState state = engine.state();
  const grpc::Status with_reason = WithReason(refusal, state);
  const bool passes = absl::IsUnavailable(status) && AdmitsRequests(state);
  return passes ? WithRetry(with_reason, kRetryDelay) : with_reason;
}

}  // namespace somnus
