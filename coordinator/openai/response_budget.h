#pragma once
// Bounds the memory of responses that are made but not sent: whole responses wait for the last token, streams
// with a large stream_interval for the next event. There is one bound for a response, and one for all
// together.
//
// Thread safe; a Part is for one thread at a time, and must not outlive its budget.

#include <atomic>
#include <cstdint>
#include <optional>

#include "coordinator/http/api_error.h"

namespace somnus {

class ResponseBudget {
 public:
  ResponseBudget(int64_t max_response_bytes, int64_t max_buffered_bytes)
      : max_response_bytes_(max_response_bytes), max_buffered_bytes_(max_buffered_bytes) {}
  ResponseBudget(const ResponseBudget&) = delete;
  ResponseBudget& operator=(const ResponseBudget&) = delete;

  // The bytes that a response holds, which are given back when the Part is destroyed.
  class Part {
   public:
    explicit Part(ResponseBudget* budget) : budget_(budget) {}
    ~Part() { budget_->buffered_bytes_ -= bytes_; }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    // Notes that the response now holds `bytes` in all. Returns an error when that is too much: a 400 for
    // this response alone, a 503 for all together.
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
