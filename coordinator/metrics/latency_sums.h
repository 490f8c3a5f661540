#pragma once
// How long requests have waited for their first tokens and for further tokens, as sums since the start: who
// looks twice has the means of the time in between. Requests that still run count with the tokens that they
// have, unlike in vllm:time_to_first_token_seconds and vllm:request_time_per_output_token_seconds.
//
// The observer behind the sums is borrowed, and is told of every event first. Thread safe.

#include <algorithm>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine_observer.h"

namespace somnus {

struct Latencies {
  int64_t num_first_tokens = 0;  // requests that have had one
  absl::Duration first_tokens;   // from the arrival
  int64_t num_further_tokens = 0;
  absl::Duration further_tokens;  // each since the token before
};

class LatencySums : public PassingObserver {
 public:
  // `next` may be null.
  explicit LatencySums(EngineObserver* next) : PassingObserver(next) {}

  void OnTokens(const TokensEvent& event) override {
    PassingObserver::OnTokens(event);
    absl::MutexLock lock(&mu_);
    if (event.has_first) {
      ++sums_.num_first_tokens;
      sums_.first_tokens += event.wait;
      sums_.num_further_tokens += std::max(0, event.num_tokens - 1);
    } else {
      sums_.num_further_tokens += event.num_tokens;
      sums_.further_tokens += event.wait;
    }
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
