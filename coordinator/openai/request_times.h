#pragma once
// How long a client gives a request: the HTTP headers X-Request-Timeout and X-SLO-TTFT-Ms; for a gRPC call
// the deadline, the field ttft_target_s and the metadata x-slo-ttft-ms. The values become times of the
// coordinator's monotonic clock when the request has been received; from then on no other clock counts. Pure
// functions.

#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/api_limits.h"

namespace somnus {

// The times as EngineRequest has them.
struct RequestTimes {
  MonotonicTime deadline = absl::InfiniteDuration();
  MonotonicTime first_token_by = absl::InfiniteDuration();
};
using TimesOrError = std::variant<RequestTimes, ApiError>;

inline constexpr char kTimeoutHeader[] = "X-Request-Timeout";  // seconds
inline constexpr char kTtftHeader[] = "X-SLO-TTFT-Ms";         // milliseconds

// The values of the headers; not set: the request has none. A 400 names a header whose value is no decimal
// number above 0.
TimesOrError TimesOfHeaders(const std::optional<std::string>& timeout, const std::optional<std::string>& ttft,
                            MonotonicTime received, const ApiLimits& limits);

// `timeout`: the time that the call has left, infinite for ever. `ttft` as the header of that name.
TimesOrError TimesOfCall(absl::Duration timeout, const std::optional<std::string>& ttft,
                         MonotonicTime received, const ApiLimits& limits);

// As above, with the field ttft_target_s, in seconds. A 400 names the field when the value is not above 0.
TimesOrError TimesOfFields(absl::Duration timeout, double ttft_target_s, MonotonicTime received,
                           const ApiLimits& limits);

}  // namespace somnus
