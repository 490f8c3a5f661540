#pragma once
// KvEventService over the served models, on operators' listener. Sync gRPC: a watcher has a thread. Thread
// safe. Internal to coordinator/grpc.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/grpc/calls/write_watch.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/openai/model_table.h"
#include "proto/kv_events.grpc.pb.h"

namespace somnus {

class KvEventServiceImpl final : public v1::KvEventService::Service {
 public:
  // `models` must outlive the service. At most `max_watchers` at once; RESOURCE_EXHAUSTED above.
  KvEventServiceImpl(const ModelTable* models, ApiKeys admin_api_keys, int32_t max_watchers,
                     std::shared_ptr<WriteWatch> write_watch);

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchKvEventsRequest* request,
                     grpc::ServerWriter<v1::KvEventBatch>* writer) override;

 private:
  grpc::Status Follow(grpc::ServerContext* context, const v1::WatchKvEventsRequest& request,
                      grpc::ServerWriter<v1::KvEventBatch>* writer);

  const ModelTable* const models_;
  const ApiKeys admin_api_keys_;
  const int32_t max_watchers_;
  const std::shared_ptr<WriteWatch> write_watch_;
  std::atomic<int32_t> num_watchers_{0};
};

}  // namespace somnus
