#pragma once
// Ends gRPC calls whose clients do not read. A write of the sync API blocks while the client's flow-control
// window is full, and has no deadline, which holds for a unary call's reply, too; so a thread looks at all
// writes in progress and cancels the calls that are stuck. Thread safe. Internal to coordinator/grpc.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/openai/client_request.h"

namespace somnus {

class WriteWatch {
  struct Entry {
    const grpc::ServerContextBase* context;
    const ClientRequest* request;
    MonotonicTime deadline;
    bool cancelled = false;
  };

 public:
  explicit WriteWatch(absl::Duration write_timeout);
  // No write may be in progress.
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  // Runs `write`, and cancels the call when that takes longer than the timeout, or when more outputs of
  // `request` wait than may. Returns false when `write` has failed or the call was cancelled here.
  bool Run(const grpc::ServerContext& context, const ClientRequest& request, absl::FunctionRef<bool()> write);

  // While a Write exists, a write of the call is in progress. `request` may be null.
  class Write {
   public:
    Write(WriteWatch* watch, const grpc::ServerContextBase* context, const ClientRequest* request);
    ~Write();
    Write(const Write&) = delete;
    Write& operator=(const Write&) = delete;
    bool cancelled() const;

   private:
    WriteWatch* const watch_;
    std::list<Entry>::iterator entry_;
  };

 private:
  void Look();

  const absl::Duration write_timeout_;
  absl::Mutex mutex_;
  std::list<Entry> writes_ ABSL_GUARDED_BY(mutex_);
  StopSignal stop_;
  std::thread thread_;
};

// For a listener: puts the replies of all unary calls under `watch`.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> WatchReplies(
    std::shared_ptr<WriteWatch> watch);

}  // namespace somnus
