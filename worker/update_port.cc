#include "worker/update_port.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/cluster_trust.h"
#include "proto/grpc_listener.h"
#include "proto/limits.h"
#include "proto/weights.grpc.pb.h"
#include "worker/listen_address.h"

namespace somnus {
namespace {

constexpr char kSocketSuffix[] = ".update";
// A chunk, and what names its tensor.
constexpr int kMaxMessageBytes = kMaxWeightChunkBytes + (64 << 10);

class Service : public v1::UpdatePortService::Service {
 public:
  explicit Service(ServeUpdate serve) : serve_(std::move(serve)) {}

  grpc::Status UpdateWeights(grpc::ServerContext* context,
                             grpc::ServerReader<v1::WorkerUpdateWeightsRequest>* reader,
                             v1::WorkerUpdateWeightsResponse* response) override {
    return serve_(context, reader, response);
  }

 private:
  const ServeUpdate serve_;
};

class ServedPort : public UpdatePort {
 public:
  ServedPort(ListenAddress address, ServeUpdate serve)
      : address_(std::move(address)), service_(std::move(serve)) {}
  absl::Status Start(const std::string& token, const std::string& host) {
    TlsIdentity identity;
    CertificateSource shown;
    if (!absl::StartsWith(address_.bind(), "unix:")) {
      ASSIGN_OR_RETURN(identity, SelfSignedIdentity(kUpdatePortName));
      shown = FixedTlsIdentity(identity);
    }
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
    builder.RegisterService(&service_);
    ASSIGN_OR_RETURN(listener_, GrpcListener::Start(address_.bind(), DescriptorUse::kClients,
                                                    UpdatePortListener(address_.bind(), token, shown),
                                                    &builder, kMaxHandshakes));
    place_.set_address(address_.Advertised(listener_->port(), host));
    place_.set_certificate(identity.certificate);
    return absl::OkStatus();
  }
  const v1::UpdatePort& place() const override { return place_; }

 private:
  // Members are destroyed in reverse: the listener before the service and the address.
  const ListenAddress address_;
  Service service_;
  std::unique_ptr<GrpcListener> listener_;
  v1::UpdatePort place_;
};

}  // namespace

OpenUpdatePort UpdatePortsBeside(const ListenAddress* address, std::string host) {
  return [address, host = std::move(host)](const std::string& token,
                                           ServeUpdate serve) -> absl::StatusOr<std::unique_ptr<UpdatePort>> {
    ASSIGN_OR_RETURN(ListenAddress beside, address->Beside(kSocketSuffix));
    auto port = std::make_unique<ServedPort>(std::move(beside), std::move(serve));
    RETURN_IF_ERROR(port->Start(token, host));
    return port;
  };
}

}  // namespace somnus
