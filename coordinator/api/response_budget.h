#pragma once
// How much memory responses take that are made and not sent: whole ones wait for their last token, streams of
// a large stream_interval for their next event. One bound for a response, one for all together.
//
// Thread safe; a Part is for one thread at a time, and must not outlive its budget.

#include <atomic>
#include <cstdint>
#include <optional>

#include "coordinator/api/api_error.h"

namespace somnus {

class ResponseBudget {
 public:
  ResponseBudget(int64_t max_response_bytes, int64_t max_buffered_bytes)
      : max_response_bytes_(max_response_bytes), max_buffered_bytes_(max_buffered_bytes) {}
  ResponseBudget(const ResponseBudget&) = delete;
  ResponseBudget& operator=(const ResponseBudget&) = delete;

  // One response's part, given back when it is destroyed.
  class Part {
   public:
    explicit Part(ResponseBudget* budget) : budget_(budget) {}
    ~Part() { budget_->buffered_bytes_ -= bytes_; }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    // The response now holds `bytes`. An error when that is too much: 400 for itself, 503 for all together.
    std::optional<ApiError> Hold(int64_t bytes);

   private:
    ResponseBudget* const budget_;
    int64_t bytes_ = 0;
  };

  int64_t buffered_bytes() const { return buffered_bytes_; }

 private:
  const int64_t max_response_bytes_;
  const int64_t max_buffered_bytes_;
  std::atomic<int64_t> buffered_bytes_{0};
};

}  // namespace somnus
