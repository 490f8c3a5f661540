#include "coordinator/grpc/request_decoding.h"

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

class Interceptor : public grpc::experimental::Interceptor {
 public:
  explicit Interceptor(const ServerRpcInfo* info) : info_(info) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      // No handler of ours returns an error without a text.
      if (status.error_code() == grpc::StatusCode::INTERNAL && status.error_message().empty()) {
        methods->ModifySendStatus({grpc::StatusCode::INVALID_ARGUMENT,
                                   absl::StrCat("the request is not a message of ", info_->method())});
      }
    }
    methods->Proceed();
  }

 private:
  const ServerRpcInfo* const info_;  // owns this
};

class Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return new Interceptor(info);
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NameUndecodableRequests() {
  return std::make_unique<Factory>();
}

}  // namespace somnus
