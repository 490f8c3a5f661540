#pragma once
// PrefixService over the served models, on clients' listener. Sync gRPC: a call that computes a prompt blocks
// its thread until the prompt is computed. Thread safe. Internal to coordinator/grpc.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/grpc/calls/call_slots.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/openai/model_table.h"
#include "proto/prefixes.grpc.pb.h"

namespace somnus {

class PrefixServiceImpl final : public v1::PrefixService::Service {
 public:
  // Calls of PinPrefix that may be open; RESOURCE_EXHAUSTED above.
  static constexpr int32_t kMaxOpenCalls = 16;

  // `models` must outlive the service.
  PrefixServiceImpl(const ModelTable* models, ApiKeys api_keys, const ApiLimits& limits);

  grpc::Status PinPrefix(grpc::ServerContext* context, const v1::PinPrefixRequest* request,
                         v1::PinnedPrefix* response) override;
  grpc::Status UnpinPrefix(grpc::ServerContext* context, const v1::UnpinPrefixRequest* request,
                           v1::UnpinPrefixResponse* response) override;
  grpc::Status ListPrefixes(grpc::ServerContext* context, const v1::ListPrefixesRequest* request,
                            v1::ListPrefixesResponse* response) override;

 private:
  grpc::Status Pin(grpc::ServerContext* context, const v1::PinPrefixRequest& request,
                   v1::PinnedPrefix* response);
  // All prefixes, or the prefix with this name, if there is such a prefix.
  std::vector<SharedModel> Models(const std::string& name) const;

  const ModelTable* const models_;
  const ApiKeys api_keys_;
  const ApiLimits limits_;
  CallSlots open_calls_{kMaxOpenCalls};
};

}  // namespace somnus
