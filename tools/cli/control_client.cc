#include "tools/cli/control_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/small_file.h"
#include "base/start_limits.h"
#include "base/status_macros.h"
#include "proto/control.grpc.pb.h"
#include "proto/status.h"

namespace somnus::cli {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kStateTimeout = absl::Seconds(5);
constexpr size_t kMaxAuthorityBytes = 16 << 20;

absl::StatusOr<std::string> ReadAuthority(const std::string& path) {
  if (path.empty()) return "";
  return ReadSmallFile(path, kMaxAuthorityBytes);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const Server& server) {
  if (!server.control.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;  // without authorities: gRPC's own, which are the system's
  ASSIGN_OR_RETURN(options.pem_root_certs, ReadAuthority(server.trust.authority));
  return grpc::SslCredentials(options);
}

absl::StatusOr<std::unique_ptr<v1::ControlService::Stub>> Connect(const Server& server) {
  // With fewer, gRPC waits for ever or aborts.
  RETURN_IF_ERROR(CheckStartLimits({.descriptors = 16, .threads = 8}));
  const std::string address = server.control.ToString();
  ASSIGN_OR_RETURN(const auto credentials, Credentials(server));
  const auto channel = grpc::CreateChannel(address, credentials);
  const auto deadline = absl::ToChronoTime(absl::Now() + kConnectTimeout);
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE &&
         channel->WaitForStateChange(state, deadline)) {
    state = channel->GetState(true);
  }
  if (state == GRPC_CHANNEL_READY) return v1::ControlService::NewStub(channel);
  return absl::UnavailableError(absl::StrCat(
      "cannot connect to ", address, server.control.tls ? " over TLS" : "", ", which the server at ",
      server.http.ToString(), " names as operators' port; --admin-host says who may reach it"));
}

void AddKey(const Server& server, grpc::ClientContext* context) {
  if (!server.admin_api_key.empty())
    context->AddMetadata("authorization", absl::StrCat("Bearer ", server.admin_api_key));
}

template <typename Request, typename Response>
absl::StatusOr<Response> Call(const Server& server, absl::Duration timeout, const Request& request,
                              grpc::Status (v1::ControlService::Stub::*method)(grpc::ClientContext*,
                                                                               const Request&, Response*)) {
  ASSIGN_OR_RETURN(const auto stub, Connect(server));
  grpc::ClientContext context;
  AddKey(server, &context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Response response;
  const grpc::Status status = (stub.get()->*method)(&context, request, &response);
  if (status.ok()) return response;
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return absl::FailedPreconditionError(absl::StrCat(
        server.control.ToString(), server.admin_api_key.empty() ? " requires a key" : " refuses this key",
        " (--admin-api-key or SOMNUS_ADMIN_API_KEY)"));
  }
  // gRPC's words when its server shuts down.
  if (status.error_message() == "Cancelling all calls")
    return absl::FailedPreconditionError("the server is shutting down");
  return absl::InternalError(status.error_message().empty() ? FromGrpcStatus(status).ToString()
                                                            : status.error_message());
}

// `flags` are the flags by which a further command means the same server and model.
std::string WhyNotServing(const std::string& flags, const v1::GetStatusResponse& status) {
  switch (status.state()) {
    case v1::ENGINE_STATE_ASLEEP:
      return absl::StrCat(status.model(), " is asleep (level ", status.sleep_level(),
                          "), and a request would wait; wake it with: somnus wake-up", flags);
    case v1::ENGINE_STATE_PAUSED:
      return absl::StrCat(status.model(),
                          " is paused, and a request would wait; end that with: somnus resume", flags);
    case v1::ENGINE_STATE_LOADING:
      return absl::StrCat("the model is still loading; see: somnus status", flags);
    case v1::ENGINE_STATE_DRAINING:
      return "the server is shutting down";
    case v1::ENGINE_STATE_AWAKE:
    case v1::ENGINE_STATE_PAUSING:
    case v1::ENGINE_STATE_FALLING_ASLEEP:
    case v1::ENGINE_STATE_WAKING:
    case v1::ENGINE_STATE_RECOVERING:
      return status.not_ready_reason();
    default:
      return status.state_report().line();
  }
}

}  // namespace

absl::StatusOr<v1::GetStatusResponse> GetStatus(const Server& server, const v1::GetStatusRequest& request,
                                                absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::GetStatus);
}

absl::StatusOr<v1::ListModelStatusResponse> ListModelStatus(const Server& server, absl::Duration timeout) {
  return Call(server, timeout, v1::ListModelStatusRequest(), &v1::ControlService::Stub::ListModelStatus);
}

absl::StatusOr<v1::SleepResponse> Sleep(const Server& server, const v1::SleepRequest& request,
                                        absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::Sleep);
}

absl::StatusOr<v1::WakeUpResponse> WakeUp(const Server& server, const v1::WakeUpRequest& request,
                                          absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::WakeUp);
}

absl::StatusOr<v1::PauseResponse> Pause(const Server& server, const v1::PauseRequest& request,
                                        absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::Pause);
}

absl::StatusOr<v1::ResumeResponse> Resume(const Server& server, const v1::ResumeRequest& request,
                                          absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::Resume);
}

absl::StatusOr<v1::ReloadWeightsResponse> ReloadWeights(const Server& server,
                                                        const v1::ReloadWeightsRequest& request,
                                                        absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::ReloadWeights);
}

absl::StatusOr<v1::ReviveResponse> Revive(const Server& server, const v1::ReviveRequest& request,
                                          absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::Revive);
}

absl::StatusOr<v1::AbortCallResponse> AbortCall(const Server& server, const v1::AbortCallRequest& request,
                                                absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::AbortCall);
}

absl::StatusOr<v1::RollResponse> Roll(const Server& server, const v1::RollRequest& request,
                                      absl::Duration timeout) {
  return Call(server, timeout, request, &v1::ControlService::Stub::Roll);
}

TransitionStream::TransitionStream(Server server, v1::WatchTransitionRequest request, Seen seen)
    : server_(std::move(server)),
      request_(std::move(request)),
      seen_(std::move(seen)),
      context_(std::make_unique<grpc::ClientContext>()),
      thread_([this] { Run(); }) {}

TransitionStream::~TransitionStream() {
  context_->TryCancel();
  thread_.join();
}

void TransitionStream::Run() {
  const auto stub = Connect(server_);
  if (!stub.ok()) return;
  AddKey(server_, context_.get());
  const auto reader = (*stub)->WatchTransition(context_.get(), request_);
  for (v1::WatchTransitionResponse response; reader->Read(&response);) seen_(response);
  reader->Finish();
}

absl::Status CheckServing(const Server& server, const std::string& model) {
  ASSIGN_OR_RETURN(const HttpResponse health, server.Client().Get("/health"));
  if (health.status == 200) return absl::OkStatus();
  v1::GetStatusRequest request;
  request.set_model(model);
  const absl::StatusOr<v1::GetStatusResponse> status = GetStatus(server, request, kStateTimeout);
  // The engine woke up between the two requests, or a different model does not serve.
  if (status.ok() && status->not_ready_reason().empty()) return absl::OkStatus();
  const std::string flags = absl::StrCat(server.url_flag, model.empty() ? "" : " --model=", model);
  return absl::FailedPreconditionError(
      status.ok() ? WhyNotServing(flags, *status)
                  : absl::StrCat("the server does not serve now (HTTP ", health.status, ")"));
}

}  // namespace somnus::cli
