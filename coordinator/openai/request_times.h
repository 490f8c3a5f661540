#pragma once
// How long a client gives its request: the HTTP headers X-Request-Timeout and X-SLO-TTFT-Ms, the deadline of
// a gRPC call, its field ttft_target_s and its metadata x-slo-ttft-ms. They become times of the coordinator's
// monotonic clock when the request has been received; from then on no other clock counts. Pure functions.

#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/api_limits.h"

namespace somnus {

// As EngineRequest has them.
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

// `timeout`: what the call has left, infinite for ever. `ttft` as the header of that name.
TimesOrError TimesOfCall(absl::Duration timeout, const std::optional<std::string>& ttft,
                         MonotonicTime received, const ApiLimits& limits);

// The same with the field ttft_target_s, in seconds. A 400 names it when it is not above 0.
TimesOrError TimesOfFields(absl::Duration timeout, double ttft_target_s, MonotonicTime received,
                           const ApiLimits& limits);

}  // namespace somnus
