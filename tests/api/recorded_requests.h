#pragma once
// A recorder of requests that a test reads. Thread safe.

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/records/request_recorder.h"

namespace somnus {

class RecordedRequests : public RequestRecorder {
 public:
  void Record(const RequestRecord& record) override {
    absl::MutexLock lock(&mu_);
    records_.push_back(record);
  }
  // Waits for the next record: a request is recorded once its response has been sent.
  RequestRecord Next() {
    absl::MutexLock lock(&mu_);
    const auto has_next = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return next_ < records_.size(); };
    mu_.Await(absl::Condition(&has_next));
    return records_[next_++];
  }

 private:
  absl::Mutex mu_;
  std::vector<RequestRecord> records_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace somnus
