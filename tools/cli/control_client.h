#pragma once
// Calls of ControlService, of the server that a command talks to.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "tools/cli/server.h"

namespace grpc {
class ClientContext;
}

namespace somnus::cli {

// Each function makes one call. Unavailable: the operators' port that the server names cannot be reached.
// FailedPrecondition: that port requires another key. Internal: the server has refused; the message is the
// server's.
absl::StatusOr<v1::GetStatusResponse> GetStatus(const Server& server, const v1::GetStatusRequest& request,
                                                absl::Duration timeout);
absl::StatusOr<v1::ListModelStatusResponse> ListModelStatus(const Server& server, absl::Duration timeout);
absl::StatusOr<v1::SleepResponse> Sleep(const Server& server, const v1::SleepRequest& request,
                                        absl::Duration timeout);
absl::StatusOr<v1::WakeUpResponse> WakeUp(const Server& server, const v1::WakeUpRequest& request,
                                          absl::Duration timeout);
absl::StatusOr<v1::PauseResponse> Pause(const Server& server, const v1::PauseRequest& request,
                                        absl::Duration timeout);
absl::StatusOr<v1::ResumeResponse> Resume(const Server& server, const v1::ResumeRequest& request,
                                          absl::Duration timeout);
absl::StatusOr<v1::ReloadWeightsResponse> ReloadWeights(const Server& server,
                                                        const v1::ReloadWeightsRequest& request,
                                                        absl::Duration timeout);
absl::StatusOr<v1::ReviveResponse> Revive(const Server& server, const v1::ReviveRequest& request,
                                          absl::Duration timeout);
absl::StatusOr<v1::AbortCallResponse> AbortCall(const Server& server, const v1::AbortCallRequest& request,
                                                absl::Duration timeout);
absl::StatusOr<v1::RollResponse> Roll(const Server& server, const v1::RollRequest& request,
                                      absl::Duration timeout);

// A stream of WatchTransition: calls `seen` with each message, on a thread of its own. The destructor waits
// for that thread. A server that cannot be watched gives no message.
class TransitionStream {
 public:
  using Seen = std::function<void(const v1::WatchTransitionResponse&)>;

  TransitionStream(Server server, v1::WatchTransitionRequest request, Seen seen);
  ~TransitionStream();
  TransitionStream(const TransitionStream&) = delete;
  TransitionStream& operator=(const TransitionStream&) = delete;

 private:
  void Run();

  const Server server_;
  const v1::WatchTransitionRequest request_;
  const Seen seen_;
  const std::unique_ptr<grpc::ClientContext> context_;
  std::thread thread_;
};

// OK when a request to the model would be served now; else FailedPrecondition, which gives the reason and the
// remedy. An empty name stands for the model of a request without a model's name.
absl::Status CheckServing(const Server& server, const std::string& model);

}  // namespace somnus::cli
