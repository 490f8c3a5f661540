#pragma once
// ControlService's WatchTransition: how far a sleep or a wake-up is, again and again. The watch asks the
// ranks and nobody else, so the watch neither waits for the watched call nor counts as a request. Internal to
// coordinator/grpc.

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/openai/served_model.h"
#include "proto/control.pb.h"

namespace somnus {

// All watchers of one server. Thread safe.
class TransitionWatch {
 public:
  using Writer = grpc::ServerWriterInterface<v1::WatchTransitionResponse>;

  // `max_watchers` at once; RESOURCE_EXHAUSTED above.
  explicit TransitionWatch(int max_watchers) : max_watchers_(max_watchers) {}

  // Blocks until no transition is under way, or, with `follow`, until the client has left or the server
  // drains. A call that is cancelled ends at once.
  grpc::Status Run(const grpc::ServerContext& context, const v1::WatchTransitionRequest& request,
                   const ServedModel& model, Writer* writer);

 private:
  bool Enter();
  void Leave();

  const int max_watchers_;
  absl::Mutex mu_;
  int num_watchers_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace somnus
