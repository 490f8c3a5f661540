#pragma once
// Real worker processes, and the coordinator that a test plays.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/cluster_trust.h"
#include "proto/worker.grpc.pb.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {

inline constexpr absl::Duration kPatience = absl::Seconds(40);
inline constexpr int kStillRunning = -1;

// The service of a coordinator that workers register with, on a Unix socket in a new folder. Thread safe.
class FakeCoordinator : public v1::ClusterService::Service {
 public:
  explicit FakeCoordinator(const ClusterTrust& trust = ClusterTrust()) : trust_(trust) { Start(); }
  ~FakeCoordinator() override { Stop(); }

  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), trust_.Listener(address()));
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::string address() const { return absl::StrCat("unix:", directory_.path(), "/coordinator.sock"); }
  const std::string& directory() const { return directory_.path(); }

  // The index-th registration, counted from 0.
  v1::RegisterRequest WaitForWorker(size_t index) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() { return workers_.size() > index; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kPatience));
    return workers_.size() > index ? workers_[index] : v1::RegisterRequest();
  }
  int beats() const { return beats_; }
  std::atomic<bool> known{true};
  std::atomic<bool> refuse{false};

 private:
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    if (refuse) return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not you");
    response->set_heartbeat_interval_ms(50);
    absl::MutexLock lock(&mu_);
    workers_.push_back(*request);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse* response) override {
    ++beats_;
    response->set_known(known);
    return grpc::Status::OK;
  }

  const ClusterTrust trust_;
  const TempDir directory_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  std::vector<v1::RegisterRequest> workers_;
  std::atomic<int> beats_{0};
};

// The worker (worker/worker under the current folder) with the given arguments; killed at the end.
class Process {
 public:
  explicit Process(std::vector<std::string> args) {
    args.insert(args.begin(), "worker/worker");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // A process that has been waited for has pid -1, which would be every process.
  void Signal(int signal) {
    ASSERT_GT(pid_, 0) << "the process has ended";
    kill(pid_, signal);
  }
  // The exit code, or kStillRunning after `timeout`.
  int Wait(absl::Duration timeout = kPatience) {
    const absl::Time deadline = absl::Now() + timeout;
    do {
      int status;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      absl::SleepFor(absl::Milliseconds(5));
    } while (absl::Now() < deadline);
    return kStillRunning;
  }

 private:
  pid_t pid_;
};

inline std::unique_ptr<v1::WorkerService::Stub> Dial(const v1::RegisterRequest& worker,
                                                     const ClusterTrust& trust = ClusterTrust()) {
  return v1::WorkerService::NewStub(grpc::CreateChannel(worker.address(), trust.Dialer(worker.address())));
}

}  // namespace somnus
