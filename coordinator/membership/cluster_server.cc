#include "coordinator/membership/cluster_server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/socket_dir.h"
#include "base/status_macros.h"
#include "base/status_message.h"
#include "coordinator/membership/process_state.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/grpc_listener.h"
#include "proto/status.h"

namespace somnus {
namespace {

// A hang is named within hang_timeout and one such interval.
constexpr absl::Duration kLongestWatchInterval = absl::Milliseconds(250);

class Service : public v1::ClusterService::Service {
 public:
  Service(Membership* membership, absl::Duration heartbeat_interval, const MonotonicClock& now,
          std::string log_name)
      : membership_(membership),
        heartbeat_interval_(heartbeat_interval),
        now_(now),
        log_name_(std::move(log_name)) {}

  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    Adoption adoption;
    absl::Status status = membership_->Register(*request, now_(), &adoption);
    if (!status.ok()) {
      LogRefusal(*request, status);
      return ToGrpcStatus(status);
    }
    response->set_action(adoption.action);
    response->set_reason(adoption.reason);
    if (adoption.action != v1::REGISTER_ACTION_ADOPT) {
      LogInfo("{}worker {} has to leave: {}", log_name_, request->worker_id(), adoption.reason);
      return grpc::Status::OK;
    }
    LogDebug("{}worker {} at {} has registered", log_name_, request->worker_id(), request->address());
    response->set_heartbeat_interval_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(heartbeat_interval_)));
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    response->set_known(membership_->Heartbeat(*request, now_()));
    return grpc::Status::OK;
  }

 private:
  void LogRefusal(const v1::RegisterRequest& worker, const absl::Status& status) const {
    const std::string reason(status.message());
    if (absl::IsUnavailable(status)) {
      LogDebug("{}worker {} has to wait: {}", log_name_, worker.worker_id(), reason);  // the worker asks
                                                                                       // every second
    } else {
      LogWarning("{}worker {} was refused: {}", log_name_, worker.worker_id(), reason);
    }
  }

  Membership* const membership_;
  const absl::Duration heartbeat_interval_;
  const MonotonicClock now_;
  const std::string log_name_;
};

class ClusterServerImpl : public ClusterServer {
 public:
  explicit ClusterServerImpl(const ClusterServerOptions& options)
      : options_(options),
        heartbeat_interval_(std::min(options.heartbeat_interval, options.membership.hang_timeout / 4)),
        membership_(options.membership),
        service_(&membership_, heartbeat_interval_, options.now, options.log_name) {}

  ~ClusterServerImpl() override {
    stop_.Stop();
    if (watcher_.joinable()) watcher_.join();
    if (listener_ != nullptr) listener_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    listener_.reset();
  }

  absl::Status Listen() {
    std::string listen = options_.address;
    if (listen.empty()) {
      absl::StatusOr<SocketDir> directory = SocketDir::Create();
      if (!directory.ok()) {
        return WithMessage(directory.status(),
                           absl::StrCat("the workers' sockets: ", directory.status().message(),
                                        " (--run-dir names another one)"));
      }
      directory_.emplace(*std::move(directory));
      listen = absl::StrCat("unix:", directory_->path(), "/coordinator.sock");
    }
    if (absl::Status status = options_.trust.CheckListen(listen); !status.ok()) return status;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(64 << 10);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    builder.RegisterService(&service_);
    auto listener = GrpcListener::Start(listen, DescriptorUse::kWorkers, options_.trust.Listener(listen),
                                        &builder, options_.trust.max_handshakes());
    if (!listener.ok())
      return WithMessage(listener.status(), absl::StrCat("for workers: ", listener.status().message()));
    listener_ = *std::move(listener);
    const bool is_socket = absl::StartsWith(listen, "unix:");
    address_ = is_socket ? listen : absl::StrCat(listen.substr(0, listen.rfind(':')), ":", listener_->port());
    watcher_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }
  absl::StatusOr<std::vector<v1::RegisterRequest>> WaitForGroup(
      absl::Duration timeout, const Membership::StopCondition& stop) override {
    return membership_.WaitForGroup(timeout, stop);
  }
  void Recheck() override { membership_.Recheck(); }
  void Interrupt(const absl::Status& reason) override { membership_.Interrupt(reason); }
  void Reopen(int32_t rank) override { membership_.Reopen(rank); }
  bool IsTaken(int32_t rank) const override { return membership_.IsTaken(rank); }
  std::vector<std::optional<MemberStatus>> Members() const override {
    return membership_.Members(options_.now());
  }
  void OnSilence(std::function<void(const SilentMember&)> callback) override {
    absl::MutexLock lock(&mu_);
    on_silence_ = std::move(callback);
  }
  void OnStall(std::function<void(const absl::Status&)> callback) override {
    absl::MutexLock lock(&mu_);
    on_stall_ = std::move(callback);
  }

 private:
  void Watch() {
    const Heartbeat heartbeat(options_.log_name, "watch of registered workers");
    absl::Status stall;  // the last stall that the callback got
    while (!stop_.WaitFor(std::min(heartbeat_interval_, kLongestWatchInterval))) {
      heartbeat.Beat();
      absl::MutexLock lock(&mu_);
      const MonotonicTime now = options_.now();
      for (const std::string& worker : membership_.DropSilent(now)) {
        LogWarning("{}{} has been silent for {}: its place is free again", options_.log_name, worker,
                   absl::FormatDuration(options_.membership.hang_timeout));
      }
      if (absl::Status progress = membership_.CheckProgress(now); on_stall_ && progress != stall) {
        stall = progress;
        on_stall_(progress);
      }
      if (!on_silence_) continue;  // the silent members are named to the next callback
      for (SilentMember& member : membership_.CheckHeartbeats(now)) {
        AddReason(&member);
        on_silence_(member);
      }
    }
  }

  static void AddReason(SilentMember* member) {
    // A worker at a Unix socket is a process of this host.
    if (!absl::StartsWith(member->worker.address(), "unix:")) return;
    const std::string reason = WhyNotRunning(member->worker.pid());
    if (reason.empty()) return;
    member->status =
        absl::Status(member->status.code(), absl::StrCat(member->status.message(), "; ", reason));
  }

  const ClusterServerOptions options_;
  const absl::Duration heartbeat_interval_;
  Membership membership_;
  Service service_;
  std::optional<SocketDir> directory_;
  std::string address_;
  std::unique_ptr<GrpcListener> listener_;
  std::thread watcher_;
  StopSignal stop_;
  absl::Mutex mu_;
  std::function<void(const SilentMember&)> on_silence_ ABSL_GUARDED_BY(mu_);
  std::function<void(const absl::Status&)> on_stall_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterServer>> ClusterServer::Start(const ClusterServerOptions& options) {
  auto server = std::make_unique<ClusterServerImpl>(options);
  absl::Status status = server->Listen();
  if (!status.ok()) return status;
  return server;
}

}  // namespace somnus
