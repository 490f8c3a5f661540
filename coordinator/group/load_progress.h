#pragma once
// Progress of weight loading on stderr: a bar on a terminal, a log line every few seconds otherwise. Update
// may be called often, by one thread at a time.

#include <cstdint>
#include <string>

#include "base/monotonic.h"

namespace somnus {

class LoadProgress {
 public:
  // `log_name`: "NAME: ", at the front of log lines, or empty.
  explicit LoadProgress(std::string log_name);
  ~LoadProgress();
  void Update(int64_t bytes_done, int64_t bytes_total);
  // Logs the total and the time; nothing is shown afterwards.
  void Finish();

 private:
  void Draw(int64_t bytes_done, int64_t bytes_total);

  const std::string log_name_;
  const bool terminal_;
  const MonotonicTime start_;
  MonotonicTime next_;
  int64_t total_ = 0;
  bool drawn_ = false;
  bool finished_ = false;
};

}  // namespace somnus
