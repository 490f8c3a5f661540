#pragma once
// gRPC itself refuses a call whose bytes are no message of its method, with INTERNAL and no text. This
// interceptor makes that INVALID_ARGUMENT with a text that names the method. Internal to coordinator/grpc.

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace somnus {

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NameUndecodableRequests();

}  // namespace somnus
