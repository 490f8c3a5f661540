#pragma once
// A fake worker that registers at a coordinator and sends heartbeats, like a worker that was started by hand.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "base/version.h"
#include "proto/cluster.grpc.pb.h"
#include "tests/fakes/fake_worker_service.h"

namespace somnus {

class FakeMember {
 public:
  using Prepare = std::function<void(FakeWorkerService&)>;

  // `id` is the worker_id; the socket is `directory`/`id`. The member prefers rank `rank`. `prepare` sets up
  // the service before the coordinator can call.
  FakeMember(
      const std::string& coordinator, const std::string& directory, const std::string& id, int rank,
      const Prepare& prepare = [](FakeWorkerService&) {})
      : service_(FakeWorkerOptions(), directory + "/" + id),
        stub_(v1::ClusterService::NewStub(
            grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials()))) {
    request_.set_worker_id(id);
    request_.set_host("host");
    request_.set_pid(100 + rank);
    request_.set_address(service_.address());
    request_.set_device_type(v1::DEVICE_TYPE_CPU);
    request_.set_preferred_rank(rank);
    request_.set_version(kVersion);
    prepare(service_);
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeMember() { Die(); }

  FakeWorkerService& service() { return service_; }
  // Registers at another coordinator, with the member's snapshot.
  void RegisterAgain(const std::string& coordinator) {
    stop_->Stop();
    thread_.join();
    stop_ = std::make_unique<StopSignal>();
    stub_ = v1::ClusterService::NewStub(grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials()));
    *request_.mutable_snapshot() = service_.Snapshot();
    thread_ = std::thread([this] { Run(); });
  }
  // The worker has not to leave, as far as coordinators have said.
  bool stays() const { return action_ == v1::REGISTER_ACTION_ADOPT; }
  // The member sends nothing any more, and no call gets a reply.
  void Die() {
    stop_->Stop();
    if (thread_.joinable()) thread_.join();
    service_.Die();
  }

 private:
  static constexpr absl::Duration kInterval = absl::Milliseconds(20);

  // Registers, again and again while the place is taken, and then sends heartbeats.
  void Run() {
    while (!stop_->stopped()) {
      grpc::ClientContext context;
      v1::RegisterResponse response;
      if (stub_->Register(&context, request_, &response).ok()) {
        action_ = response.action();
        break;
      }
      stop_->WaitFor(kInterval);
    }
    while (action_ == v1::REGISTER_ACTION_ADOPT && !stop_->WaitFor(kInterval)) {
      grpc::ClientContext context;
      v1::HeartbeatRequest beat;
      v1::HeartbeatResponse response;
      beat.set_worker_id(request_.worker_id());
      (void)stub_->Heartbeat(&context, beat, &response).ok();
    }
  }

  FakeWorkerService service_;
  std::unique_ptr<v1::ClusterService::Stub> stub_;
  v1::RegisterRequest request_;
  std::unique_ptr<StopSignal> stop_ = std::make_unique<StopSignal>();
  std::atomic<v1::RegisterAction> action_{v1::REGISTER_ACTION_ADOPT};
  std::thread thread_;
};

}  // namespace somnus
