#pragma once
// A receiver of requests' records: the access log, or the exporter of traces.

#include <memory>
#include <utility>
#include <vector>

#include "coordinator/records/request_record.h"

namespace somnus {

class RequestRecorder {
 public:
  virtual ~RequestRecorder() = default;
  // Called on the threads that serve: must not block. Thread safe.
  virtual void Record(const RequestRecord& record) = 0;
};

// Passes each record on to several recorders.
class RequestRecorders : public RequestRecorder {
 public:
  explicit RequestRecorders(std::vector<std::shared_ptr<RequestRecorder>> recorders)
      : recorders_(std::move(recorders)) {}
  void Record(const RequestRecord& record) override {
    for (const std::shared_ptr<RequestRecorder>& recorder : recorders_) recorder->Record(record);
  }

 private:
  const std::vector<std::shared_ptr<RequestRecorder>> recorders_;
};

}  // namespace somnus
