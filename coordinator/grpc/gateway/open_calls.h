#pragma once
// The open Generate calls of gateways by request id, so that Abort finds a call. Gateways reach no calls of
// other services. Thread safe. Internal to coordinator/grpc/gateway.

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/grpc/calls/generate_call.h"

namespace somnus::gateway {

class OpenCalls {
 public:
  // A call as long as the object exists. Both pointees must outlive the object.
  class Entry {
   public:
    Entry(OpenCalls* calls, const std::string& request_id, GenerateCall* call);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    OpenCalls* const calls_;
    std::multimap<std::string, GenerateCall*>::iterator it_;
  };

  OpenCalls() = default;
  OpenCalls(const OpenCalls&) = delete;
  OpenCalls& operator=(const OpenCalls&) = delete;

  // Aborts all calls with that id.
  void Abort(const std::string& request_id);

 private:
  absl::Mutex mutex_;
  std::multimap<std::string, GenerateCall*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace somnus::gateway
