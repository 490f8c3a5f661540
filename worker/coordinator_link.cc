#include "worker/coordinator_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/handshake.h"
#include "proto/status.h"
#include "worker/connection_watch.h"

namespace somnus {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);
constexpr absl::Duration kLastRetry = absl::Seconds(1);
constexpr absl::Duration kRegisterCallTimeout = absl::Seconds(5);
// A heartbeat that gets lost holds up the next heartbeats for this time, far less than a coordinator waits
// for a heartbeat.
constexpr absl::Duration kHeartbeatCallTimeout = absl::Seconds(1);

// A worker that waits for the next coordinator of its host looks so often, since every moment of it is one in
// which nothing is served.
constexpr absl::Duration kLocalPause = absl::Milliseconds(50);
constexpr int kLocalReconnectMs = 100;
constexpr int kReconnectMs = 1000;

bool IsLocal(const std::string& address) { return absl::StartsWith(address, "unix:"); }

std::shared_ptr<grpc::Channel> Dial(const std::string& address, const ClusterTrust& trust) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, IsLocal(address) ? kLocalReconnectMs : kReconnectMs);
  return grpc::CreateCustomChannel(address, trust.Dialer(address), arguments);
}

bool WorthRetrying(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

class CoordinatorLinkImpl : public CoordinatorLink {
 public:
  explicit CoordinatorLinkImpl(const CoordinatorLinkOptions& options)
      : CoordinatorLinkImpl(options, Dial(options.coordinator, options.trust)) {}

  ~CoordinatorLinkImpl() override {
    Stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Register(const v1::RegisterRequest& request) override {
    const MonotonicTime deadline = options_.now() + options_.register_timeout;
    absl::Duration retry = kFirstRetry;
    request_ = request;
    while (true) {
      v1::RegisterResponse response;
      absl::Status status = Call(kRegisterCallTimeout, [&](grpc::ClientContext* context) {
        return stub_->Register(context, request, &response);
      });
      if (status.ok()) return Join(response);
      if (stop_.stopped()) return absl::CancelledError("told to leave");
      if (!WorthRetrying(status)) return status;
      if (options_.now() + retry > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("not registered at the coordinator at ", options_.coordinator, " within ",
                         absl::FormatDuration(options_.register_timeout), ": ", status.message()));
      }
      if (retry == kFirstRetry)
        LogInfo("waiting for a place in the group of the coordinator at {}: {}", options_.coordinator,
                std::string(status.message()));
      stop_.WaitFor(retry);
      retry = std::min(2 * retry, kLastRetry);
    }
  }

  void StartHeartbeats(Beat beat, Refresh refresh, std::function<void(absl::Status)> on_leave) override {
    thread_ = std::thread(
        [this, beat = std::move(beat), refresh = std::move(refresh), on_leave = std::move(on_leave)] {
          const absl::Status reason = BeatUntilGone(beat, refresh);
          if (!stop_.stopped()) on_leave(reason);
        });
  }

  void Stop() override {
    stop_.Stop();
    watch_->Stop();
    absl::MutexLock lock(&mu_);
    if (call_ != nullptr) call_->TryCancel();
  }

 private:
  CoordinatorLinkImpl(const CoordinatorLinkOptions& options, const std::shared_ptr<grpc::Channel>& channel)
      : options_(options),
        watch_(ConnectionWatch::Create(channel, options.coordinator)),
        stub_(v1::ClusterService::NewStub(channel)) {}

  // Takes the place that the coordinator has given, or returns why it has given none.
  absl::Status Join(const v1::RegisterResponse& response) {
    if (response.action() != v1::REGISTER_ACTION_ADOPT) {
      return absl::FailedPreconditionError(
          absl::StrCat("the coordinator has no use for what this worker holds: ", response.reason()));
    }
    interval_ = absl::Milliseconds(std::clamp(response.heartbeat_interval_ms(), 10, 60'000));
    if (options_.heartbeat_interval > absl::ZeroDuration()) interval_ = options_.heartbeat_interval;
    return absl::OkStatus();
  }

  absl::Status BeatUntilGone(const Beat& beat, const Refresh& refresh) {
    const Heartbeat heartbeat("", "heartbeats to the coordinator");
    MonotonicTime last_answer = options_.now();
    bool waits = false, listens = false;
    while (true) {
      heartbeat.Beat();
      listens = Pause(waits, listens);
      if (stop_.stopped()) return absl::OkStatus();
      bool known = true;
      const absl::Duration stood_still = StoodStill();
      absl::Status status = SendBeat(beat, listens, &known);
      if (!known) {
        status = RegisterAgain(refresh);
        if (!status.ok() && !WorthRetrying(status)) return status;
      }
      if (status.ok()) {
        last_answer = options_.now();
      } else if (options_.now() - last_answer >= options_.worker_grace) {
        return absl::UnavailableError(absl::StrCat("no reply from the coordinator at ", options_.coordinator,
                                                   " for ", absl::FormatDuration(options_.worker_grace), ": ",
                                                   status.message()));
      }
      // A call that this process slept through says nothing of the coordinator.
      const bool missed = !status.ok() && StoodStill() == stood_still;
      if (missed && !waits) {
        LogWarning("the coordinator at {} does not reply; waiting {} for it or its successor: {}",
                   options_.coordinator, absl::FormatDuration(options_.worker_grace),
                   std::string(status.message()));
      }
      waits = missed;
    }
  }

  // Until the next heartbeat is due. `waits`: for a coordinator that does not reply, or its successor;
  // `listened`: somebody listened at the address before, and has not replied either. Returns whether somebody
  // listens now.
  bool Pause(bool waits, bool listened) {
    const Heartbeat::Wait wait(2 * interval_);
    if (!waits) {
      watch_->WaitForLoss(interval_);
      return false;
    }
    const absl::Duration pause = IsLocal(options_.coordinator) ? std::min(interval_, kLocalPause) : interval_;
    if (listened) stop_.WaitFor(pause);
    return watch_->WaitForListener(pause);
  }

  // `connects`: it is worth waiting for a connection.
  absl::Status SendBeat(const Beat& beat, bool connects, bool* known) {
    v1::HeartbeatRequest request;
    v1::HeartbeatResponse response;
    request.set_worker_id(request_.worker_id());
    beat(&request);
    const absl::Status status = Call(kHeartbeatCallTimeout, [&](grpc::ClientContext* context) {
      context->set_wait_for_ready(connects);
      return stub_->Heartbeat(context, request, &response);
    });
    *known = !status.ok() || response.known();
    return status;
  }

  absl::Status RegisterAgain(const Refresh& refresh) {
    v1::RegisterRequest request = request_;
    refresh(&request);
    v1::RegisterResponse response;
    RETURN_IF_ERROR(Call(kRegisterCallTimeout, [&](grpc::ClientContext* context) {
      return stub_->Register(context, request, &response);
    }));
    RETURN_IF_ERROR(Join(response));
    LogInfo("registered again at {}", options_.coordinator);
    return absl::OkStatus();
  }

  template <typename Rpc>
  absl::Status Call(absl::Duration timeout, const Rpc& rpc) {
    grpc::ClientContext context;
    const Heartbeat::Wait wait(timeout);
    // gRPC turns this into a time of its own monotonic clock at once.
    context.set_deadline(absl::ToChronoTime(absl::Now() + std::min(timeout, CallBound())));
    {
      absl::MutexLock lock(&mu_);
      if (stop_.stopped()) return absl::CancelledError("stopped");
      call_ = &context;
    }
    const absl::Status status = FromGrpcStatus(rpc(&context));
    absl::MutexLock lock(&mu_);
    call_ = nullptr;
    return ExplainHandshake(status);
  }

  // A coordinator that hangs must not extend the grace by a whole call.
  absl::Duration CallBound() const { return std::max(options_.worker_grace, absl::Milliseconds(100)); }

  const CoordinatorLinkOptions options_;
  const std::unique_ptr<ConnectionWatch> watch_;
  const std::unique_ptr<v1::ClusterService::Stub> stub_;  // ends before the watch
  v1::RegisterRequest request_;                           // set by Register, before the thread starts
  absl::Duration interval_;                               // likewise, and by the thread afterwards
  StopSignal stop_;
  absl::Mutex mu_;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<CoordinatorLink> CoordinatorLink::Create(const CoordinatorLinkOptions& options) {
  return std::make_unique<CoordinatorLinkImpl>(options);
}

}  // namespace somnus
