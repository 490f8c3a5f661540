#pragma once
// A call whose bytes are no message of its method is refused by gRPC itself, with INTERNAL and no text. This
// interceptor makes it INVALID_ARGUMENT with a text that names the method. Internal to coordinator/api.

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace somnus {

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NameUndecodableRequests();

}  // namespace somnus
