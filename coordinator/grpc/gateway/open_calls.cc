#include "coordinator/grpc/gateway/open_calls.h"

namespace somnus::gateway {

OpenCalls::Entry::Entry(OpenCalls* calls, const std::string& request_id, GenerateCall* call) : calls_(calls) {
  absl::MutexLock lock(&calls_->mutex_);
  it_ = calls_->calls_.emplace(request_id, call);
}

OpenCalls::Entry::~Entry() {
  absl::MutexLock lock(&calls_->mutex_);
  calls_->calls_.erase(it_);
}

void OpenCalls::Abort(const std::string& request_id) {
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = calls_.equal_range(request_id);
  for (auto it = begin; it != end; ++it) it->second->Abort();
}

}  // namespace somnus::gateway
