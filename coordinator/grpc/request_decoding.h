#pragma once
// gRPC itself refuses a call with bytes that are no message of the call's method, with INTERNAL and no text.
// This interceptor turns that error into INVALID_ARGUMENT with a text that names the method. Internal to
// coordinator/grpc.

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace somnus {

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NameUndecodableRequests();

}  // namespace somnus
