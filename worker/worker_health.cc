#include "worker/worker_health.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(500);
constexpr int kIdleMs = 60'000;  // a probe asks and leaves
constexpr int kMaxMessageBytes = 1 << 10;

// `nothing`: a server needs a service beside gRPC's own health service; this one refuses all calls.
absl::StatusOr<std::unique_ptr<GrpcListener>> ListenForProbes(const std::string& address, int max_handshakes,
                                                              grpc::CallbackGenericService* nothing) {
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(nothing);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  auto listener = GrpcListener::Start(address, DescriptorUse::kClients, grpc::InsecureServerCredentials(),
                                      &builder, max_handshakes);
  if (listener.ok()) return listener;
  return absl::Status(listener.status().code(),
                      absl::StrCat("--health-listen: ", listener.status().message()));
}

}  // namespace

void WorkerHealth::Enable() { grpc::EnableDefaultHealthCheckService(true); }

absl::StatusOr<std::unique_ptr<WorkerHealth>> WorkerHealth::Start(GrpcListener* worker,
                                                                  const std::string& address,
                                                                  int max_handshakes,
                                                                  const Heartbeats* heartbeats) {
  auto nothing = std::make_unique<grpc::CallbackGenericService>();
  std::unique_ptr<GrpcListener> probes;
  if (!address.empty()) {
    ASSIGN_OR_RETURN(probes, ListenForProbes(address, max_handshakes, nothing.get()));
  }
  return std::unique_ptr<WorkerHealth>(
      new WorkerHealth(worker, std::move(nothing), std::move(probes), heartbeats));
}

WorkerHealth::WorkerHealth(GrpcListener* worker, std::unique_ptr<grpc::CallbackGenericService> nothing,
                           std::unique_ptr<GrpcListener> probes, const Heartbeats* heartbeats)
    : worker_(*worker),
      nothing_(std::move(nothing)),
      probes_(std::move(probes)),
      heartbeats_(*heartbeats),
      thread_([this] { Run(); }) {}

WorkerHealth::~WorkerHealth() {
  stop_.Stop();
  thread_.join();
}

void WorkerHealth::Run() const {
  bool was_alive = true;
  Tell(true);
  while (!stop_.WaitFor(kInterval)) {
    const absl::Status alive = heartbeats_.Check();
    if (alive.ok() == was_alive) continue;
    was_alive = alive.ok();
    Tell(was_alive);
    if (was_alive) {
      LogWarning("all threads of the worker give signs of life again");
    } else {
      LogError("{}", std::string(alive.message()));
    }
  }
  Tell(false);
}

void WorkerHealth::Tell(bool serving) const {
  for (GrpcListener* listener : {&worker_, probes_.get()}) {
    if (listener == nullptr) continue;
    grpc::HealthCheckServiceInterface* const health = listener->server().GetHealthCheckService();
    if (health == nullptr) continue;  // Enable was not called
    health->SetServingStatus("", serving);
    health->SetServingStatus(v1::WorkerService::service_full_name(), serving);
  }
}

}  // namespace somnus
