#include "proto/grpc_listener.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/grpc_acceptor.h"

namespace somnus {
namespace {

class GrpcListenerImpl : public GrpcListener {
 public:
  GrpcListenerImpl(std::unique_ptr<GrpcAcceptor> acceptor, std::unique_ptr<grpc::Server> server)
      : server_(std::move(server)), acceptor_(std::move(acceptor)) {}
  ~GrpcListenerImpl() override { Shutdown(std::chrono::system_clock::now()); }

  int port() const override { return acceptor_->port(); }
  grpc::Server& server() override { return *server_; }
  void Shutdown(std::chrono::system_clock::time_point deadline) override {
    acceptor_->Stop();
    server_->Shutdown(deadline);
  }

 private:
  const std::unique_ptr<grpc::Server> server_;
  const std::unique_ptr<GrpcAcceptor> acceptor_;  // ends before the server
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Start(
    const std::string& address, DescriptorUse use,
    const std::shared_ptr<grpc::ServerCredentials>& credentials, grpc::ServerBuilder* builder,
    int max_handshakes) {
  ASSIGN_OR_RETURN(std::unique_ptr<GrpcAcceptor> acceptor, GrpcAcceptor::Open(address, use, max_handshakes));
  acceptor->AddTo(builder, credentials);
  std::unique_ptr<grpc::Server> server = builder->BuildAndStart();
  if (server == nullptr) return absl::UnavailableError(absl::StrCat("gRPC cannot serve ", address));
  const absl::Status started = acceptor->Start();
  auto listener = std::make_unique<GrpcListenerImpl>(std::move(acceptor), std::move(server));
  RETURN_IF_ERROR(started);
  return listener;
}

}  // namespace somnus
