#include "coordinator/grpc/request_memory.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "base/freed_memory.h"

namespace somnus {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

// A message of fewer encoded bytes is not large in memory either: two bytes make a string of 40 at most.
constexpr size_t kLeastEncodedBytes = 8 << 10;

// gRPC calls the hooks on the call's thread, and has destroyed the message before it sends the status.
class MemoryInterceptor : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE))
      largest_ = std::max(largest_.value_or(0), BytesOf(methods->GetRecvMessage()));
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS) &&
        largest_.value_or(0) > kLargeInputBytes)
      ReturnFreedMemory();
    methods->Proceed();
  }

 private:
  // Of the message in memory. There is no message where a stream of messages has ended, or where the bytes
  // are no message of the method: gRPC may have decoded megabytes before it found out.
  size_t BytesOf(const void* received) const {
    if (received == nullptr) return largest_.has_value() ? 0 : kLargeInputBytes + 1;
    const auto& message = *static_cast<const google::protobuf::Message*>(received);
    return message.ByteSizeLong() < kLeastEncodedBytes ? 0 : message.SpaceUsedLong();
  }

  std::optional<size_t> largest_;  // of the call's messages
};

class MemoryInterceptors : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // The messages of gRPC's own health service are no objects of protobuf.
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return absl::StartsWith(info->method(), "/grpc.") ? nullptr : new MemoryInterceptor;
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ReturnRequestMemory() {
  return std::make_unique<MemoryInterceptors>();
}

}  // namespace somnus
