#pragma once
// The access log: one JSON object in one line for each request.
//
// No byte that a client sends can end a line or stand outside a JSON string: lines are ASCII, a control
// character or a byte that is no UTF-8 is escaped or replaced, and each text is cut at kMaxTextBytes. No
// prompt, no key and no header but the request's id is written. Lines beyond the queue are dropped and
// counted (base/log_writer.h), so that a disk that is full holds up no request. Thread safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/log_writer.h"
#include "coordinator/records/request_recorder.h"

namespace somnus {

// The line of a record, with its line break.
std::string AccessLine(const RequestRecord& record);

class AccessLog : public RequestRecorder {
 public:
  static constexpr size_t kMaxTextBytes = 256;

  // Appends to the file, which is made where there is none; "-" is stdout. `queue_bytes`: of lines that wait.
  // Errors name the file: PermissionDenied, NotFound, ...
  static absl::StatusOr<std::unique_ptr<AccessLog>> Open(const std::string& path, int64_t queue_bytes);
  // Waits up to a second until all lines are written.
  ~AccessLog() override;

  void Record(const RequestRecord& record) override { writer_->Add(AccessLine(record)); }
  // Lines that were not written.
  int64_t num_dropped() const { return writer_->num_dropped(); }

 private:
  AccessLog(int fd, int64_t queue_bytes);

  const int fd_;
  std::unique_ptr<LogWriter> writer_;
};

}  // namespace somnus
