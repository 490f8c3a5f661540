#pragma once
// What a large message of a client has taken goes back to the kernel when the call ends: a message of 4 MiB
// may hold two million strings, which take 90 MiB of the arena of the call's thread. Internal to
// coordinator/grpc.

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace somnus {

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ReturnRequestMemory();

}  // namespace somnus
