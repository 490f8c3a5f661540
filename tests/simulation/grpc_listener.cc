// GrpcListener over the simulated network, where no descriptor ever lacks.
#include "proto/grpc_listener.h"

#include <utility>

#include "absl/strings/numbers.h"

namespace somnus {
namespace {

class SimulatedListener : public GrpcListener {
 public:
  SimulatedListener(std::unique_ptr<grpc::Server> server, int port)
      : server_(std::move(server)), port_(port) {}

  int port() const override { return port_; }
  grpc::Server& server() override { return *server_; }
  void Shutdown(std::chrono::system_clock::time_point deadline) override { server_->Shutdown(deadline); }

 private:
  const std::unique_ptr<grpc::Server> server_;
  const int port_;
};

// A port that the system may choose is 1.
int PortOf(const std::string& address) {
  int port = 0;
  return absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port) && port > 0 ? port : 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Start(
    const std::string& address, DescriptorUse, const std::shared_ptr<grpc::ServerCredentials>& credentials,
    grpc::ServerBuilder* builder, int) {
  builder->AddListeningPort(address, credentials);
  return std::make_unique<SimulatedListener>(builder->BuildAndStart(), PortOf(address));
}

}  // namespace somnus
