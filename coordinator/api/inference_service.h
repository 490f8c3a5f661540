#pragma once
// InferenceService over a served model. Sync gRPC: one thread per open call, bounded. Internal to
// coordinator/api.

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/api/api_limits.h"
#include "coordinator/api/served_model.h"
#include "proto/inference.grpc.pb.h"

namespace somnus {

class Metrics;

// What both services need; shared, thread safe.
class ModelSlot {
 public:
  void Set(ServedModel model);
  std::shared_ptr<const ServedModel> Get() const;  // null while loading

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
};

// UNAUTHENTICATED unless the call carries the key.
grpc::Status CheckKey(const grpc::ServerContext& context, const std::string& api_key);

class InferenceServiceImpl final : public v1::InferenceService::Service {
 public:
  // `slot` must outlive the service.
  InferenceServiceImpl(const ModelSlot* slot, std::shared_ptr<Metrics> metrics, std::string api_key,
                       const ApiLimits& limits);

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override;

 private:
  grpc::Status Serve(grpc::ServerContext* context, const v1::GenerateRequest& request,
                     grpc::ServerWriter<v1::GenerateResponse>* writer);

  const ModelSlot* const slot_;
  const std::shared_ptr<Metrics> metrics_;
  const std::string api_key_;
  const ApiLimits limits_;
  std::atomic<int32_t> open_calls_{0};
};

}  // namespace somnus
