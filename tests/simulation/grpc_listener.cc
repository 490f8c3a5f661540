// GrpcListener over the simulated network, where no descriptor ever lacks.
#include "proto/grpc_listener.h"

#include <utility>

namespace somnus {
namespace {

class SimulatedListener : public GrpcListener {
 public:
  explicit SimulatedListener(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {}

  int port() const override { return 1; }
  grpc::Server& server() override { return *server_; }
  void Shutdown(std::chrono::system_clock::time_point deadline) override { server_->Shutdown(deadline); }

 private:
  const std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Start(
    const std::string& address, DescriptorUse, const std::shared_ptr<grpc::ServerCredentials>& credentials,
    grpc::ServerBuilder* builder, int) {
  builder->AddListeningPort(address, credentials);
  return std::make_unique<SimulatedListener>(builder->BuildAndStart());
}

}  // namespace somnus
