#pragma once
// One gateway that follows the prefix cache of a model: batches of events, each with the engine's load, and
// records of load alone while nothing enters or leaves the cache. For the call's own thread. Internal to
// coordinator/grpc/gateway.

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdint>

#include "coordinator/engine/kv_event_log.h"
#include "coordinator/grpc/calls/write_watch.h"
#include "coordinator/grpc/gateway/load_report.h"
#include "coordinator/grpc/gateway/wire.h"
#include "coordinator/openai/served_model.h"

namespace somnus::gateway {

class KvEventStream {
 public:
  // Without an event for so long, a record of load is written.
  static constexpr absl::Duration kLoadInterval = absl::Seconds(1);

  // The pointees must outlive the stream. `model` has events. `rate` is shared by all readers of loads.
  KvEventStream(::grpc::ServerContext* context, const ServedModel& model, WriteWatch* write_watch,
                RateMeter* rate, ::grpc::ServerWriter<common::KvEventBatch>* writer);

  // Returns when the client has left, or nothing comes any more.
  ::grpc::Status Follow(const common::SubscribeKvEventsRequest& request);

 private:
  bool WriteBatch(const KvEventBatch& batch);
  bool WriteLoad();
  bool Write(common::KvEventBatch* message);

  ::grpc::ServerContext* const context_;
  const ServedModel& model_;
  WriteWatch* const write_watch_;
  RateMeter* const rate_;
  ::grpc::ServerWriter<common::KvEventBatch>* const writer_;
  uint64_t last_sequence_ = 0;  // that was written
  uint64_t num_samples_ = 0;    // of load
  uint64_t num_events_ = 0;
  uint32_t snapshot_parts_ = 0;  // of the snapshot that is being written; 0: none is
  MonotonicTime last_write_;
};

// The events of a batch; `block_size`: tokens. Event ids go on from `*num_events`.
void FillEvents(const KvEventBatch& batch, int32_t block_size, uint64_t* num_events,
                common::KvEventBatch* message);

}  // namespace somnus::gateway
