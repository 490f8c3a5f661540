#pragma once
// How long requests have waited for their first tokens and for further tokens, as sums since the start: who
// looks twice has the means of the time in between. Counts what vllm:time_to_first_token_seconds and
// vllm:request_time_per_output_token_seconds count, when a request has ended.
//
// The observer behind the sums is borrowed, and is told of every event first. Thread safe.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine_observer.h"

namespace somnus {

struct Latencies {
  int64_t num_first_tokens = 0;    // of requests that have ended
  absl::Duration first_tokens;     // from the arrival
  int64_t num_further_tokens = 0;  // of the same requests
  absl::Duration further_tokens;   // from the first token to the last one
};

class LatencySums : public PassingObserver {
 public:
  // `next` may be null.
  explicit LatencySums(EngineObserver* next) : PassingObserver(next) {}

  void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) override {
    PassingObserver::OnRequestFinished(request, end);
    const absl::Time first = end.moments.first_token;
    if (end.num_output_tokens < 1 || first < request.arrival || first > end.finished) return;
    absl::MutexLock lock(&mu_);
    ++sums_.num_first_tokens;
    sums_.first_tokens += first - request.arrival;
    sums_.num_further_tokens += end.num_output_tokens - 1;
    sums_.further_tokens += end.finished - first;
  }

  Latencies Sums() const {
    absl::MutexLock lock(&mu_);
    return sums_;
  }

 private:
  mutable absl::Mutex mu_;
  Latencies sums_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
