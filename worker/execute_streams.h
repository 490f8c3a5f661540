#pragma once
// The Execute streams of a worker. A stream belongs to the epoch of its first step, and an epoch has one. The
// stream of an epoch that is over may still be ending when the next one opens.
//
// The RPC's own thread reads steps, the Worker's runner thread executes them, a third writes the replies, so
// that neither reading nor writing delays the device. At most kMaxQueuedSteps steps of a stream are between
// reading and writing.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdint>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/worker.pb.h"

namespace somnus {

class Worker;

// Thread safe. Borrows the Worker.
class ExecuteStreams {
 public:
  using Stream = grpc::ServerReaderWriter<v1::StepReply, v1::StepRequest>;

  explicit ExecuteStreams(Worker* worker) : worker_(worker) {}

  // Serves a stream until its end. A step that does not belong here (of another epoch than the worker's or
  // the stream's, or of an epoch that has a stream already) gets an error reply, and ends the stream with the
  // same error. ResourceExhausted: too many streams are open.
  grpc::Status Serve(grpc::ServerContext* context, Stream* stream);
  // Ends all streams that are open now; returns before they have ended.
  void CancelAll();

 private:
  struct Open {
    grpc::ServerContext* context = nullptr;
    int64_t epoch = 0;  // 0 before the first step
  };
  using OpenStreams = std::list<Open>;
  class Registration;

  // Ok when the step belongs to the stream and to the worker's epoch.
  absl::Status Admit(OpenStreams::iterator self, const v1::StepRequest& step);
  absl::Status ServeSteps(OpenStreams::iterator self, Stream* stream);

  Worker* const worker_;
  absl::Mutex mu_;
  OpenStreams open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
