#pragma once
// The UpdateWeights streams of a worker: each RPC's own thread hands one chunk after another to the Worker,
// and reads the next one once that is done with, so that a sender is never more than gRPC's buffers ahead.
//
// The streams of a direct update come from a trainer, to the worker's update port. A stream of the
// coordinator holds it open: the port closes when that one ends, however it does.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/worker.pb.h"
#include "worker/update_port.h"

namespace somnus {

class Worker;

// Thread safe. Borrows the Worker.
class UpdateStreams {
 public:
  using Reader = grpc::ServerReader<v1::WorkerUpdateWeightsRequest>;

  // Without `open_port` there are no update ports.
  UpdateStreams(Worker* worker, OpenUpdatePort open_port)
      : worker_(worker), open_port_(std::move(open_port)) {}

  // Serves a stream of the coordinator until its end, or its first error. ResourceExhausted: too many streams
  // are open.
  grpc::Status Serve(grpc::ServerContext* context, Reader* reader, v1::WorkerUpdateWeightsResponse* response);
  // Opens a port for that update, in the place of another one. An error: there is none.
  absl::StatusOr<v1::UpdatePort> OpenPort(const std::string& update_id, const std::string& token);
  // Ends the port, and the streams that have come to it; returns once they have ended. Of that update alone,
  // or of any where it is empty.
  void ClosePort(const std::string& update_id = "");
  // Ends all streams that are open now; returns before they have ended.
  void CancelAll();

 private:
  class Registration;

  grpc::Status Admit(grpc::ServerContext* context, Reader* reader, v1::WorkerUpdateWeightsResponse* response,
                     bool may_hold_port);
  absl::Status ServeChunks(Reader* reader, v1::WorkerUpdateWeightsResponse* response, bool may_hold_port);

  Worker* const worker_;
  const OpenUpdatePort open_port_;
  absl::Mutex mu_;
  std::list<grpc::ServerContext*> open_ ABSL_GUARDED_BY(mu_);
  // Held while a port opens or closes: a socket's name is free again when the one before is gone.
  absl::Mutex port_mu_;
  std::string port_update_ ABSL_GUARDED_BY(port_mu_);  // whose port it is
  std::unique_ptr<UpdatePort> port_ ABSL_GUARDED_BY(port_mu_);
};

}  // namespace somnus
