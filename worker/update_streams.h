#pragma once
// The UpdateWeights streams of a worker: each RPC's own thread hands one chunk after another to the Worker,
// and reads the next one once that is done with, so that a sender is never more than gRPC's buffers ahead.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/worker.pb.h"

namespace somnus {

class Worker;

// Thread safe. Borrows the Worker.
class UpdateStreams {
 public:
  using Reader = grpc::ServerReader<v1::WorkerUpdateWeightsRequest>;

  explicit UpdateStreams(Worker* worker) : worker_(worker) {}

  // Serves a stream until its end, or its first error. ResourceExhausted: too many streams are open.
  grpc::Status Serve(grpc::ServerContext* context, Reader* reader, v1::WorkerUpdateWeightsResponse* response);
  // Ends all streams that are open now; returns before they have ended.
  void CancelAll();

 private:
  class Registration;

  absl::Status ServeChunks(Reader* reader, v1::WorkerUpdateWeightsResponse* response);

  Worker* const worker_;
  absl::Mutex mu_;
  std::list<grpc::ServerContext*> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
