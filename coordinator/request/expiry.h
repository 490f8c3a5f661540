#pragma once
// When the time of a request is over, and the error that its client gets then. Pure functions.

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/status/status.h"
#include "base/monotonic.h"
#include "coordinator/request/request.h"

namespace somnus {

enum class ExpiryCause {
  kDeadlineWaiting,  // the deadline of a request that was never scheduled
  kDeadlineRunning,  // the deadline of a request that had begun
  kTtftEstimate,     // already on arrival no first token could be made by first_token_by
  kTtftPassed,       // first_token_by was over before the request was scheduled
};
inline constexpr std::array<const char*, 4> kExpiryCauses = {"deadline_waiting", "deadline_running",
                                                             "ttft_estimate", "ttft_passed"};

inline const char* ExpiryCauseName(ExpiryCause cause) { return kExpiryCauses[static_cast<size_t>(cause)]; }

inline MonotonicTime ExpiresAt(const EngineRequest& request, bool was_scheduled) {
  return was_scheduled ? request.deadline : std::min(request.deadline, request.first_token_by);
}

// Why a request has expired that has done so by `now`.
inline ExpiryCause CauseOfExpiry(const EngineRequest& request, bool was_scheduled, MonotonicTime now) {
  if (request.deadline > now) return ExpiryCause::kTtftPassed;
  return was_scheduled ? ExpiryCause::kDeadlineRunning : ExpiryCause::kDeadlineWaiting;
}

// DeadlineExceeded; Unavailable where nothing was done, so that the client may try again.
inline absl::Status ExpiryError(ExpiryCause cause) {
  switch (cause) {
    case ExpiryCause::kTtftEstimate:
      return absl::UnavailableError("the first token cannot be made within the time that the request sets");
    case ExpiryCause::kTtftPassed:
      return absl::UnavailableError("the time that the request sets for its first token is over");
    default:
      return absl::DeadlineExceededError("the request has not ended by its deadline");
  }
}

}  // namespace somnus
