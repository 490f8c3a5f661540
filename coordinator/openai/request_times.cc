#include "coordinator/openai/request_times.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace somnus {
namespace {

// Digits, and one point among the digits: no sign, no exponent, no "inf".
std::optional<double> Decimal(absl::string_view text) {
  constexpr size_t kMaxLength = 32;
  double value = 0;
  const bool is_plain = text.size() <= kMaxLength &&
                        text.find_first_not_of("0123456789.") == absl::string_view::npos &&
                        text.find('.') == text.rfind('.');
  if (!is_plain || !absl::SimpleAtod(text, &value) || value <= 0) return std::nullopt;
  return value;
}

ApiError Malformed(const char* header, const char* unit) {
  return BadRequest(header, absl::StrCat(header, " must be one number of ", unit, " above 0, such as 2.5"));
}

MonotonicTime Deadline(absl::Duration timeout, MonotonicTime received, const ApiLimits& limits) {
  const bool is_bounded = limits.max_request_timeout > absl::ZeroDuration();
  return received + (is_bounded ? std::min(timeout, limits.max_request_timeout) : timeout);
}

}  // namespace

TimesOrError TimesOfCall(absl::Duration timeout, const std::optional<std::string>& ttft,
                         MonotonicTime received, const ApiLimits& limits) {
  RequestTimes times;
  times.deadline = Deadline(timeout, received, limits);
  if (!ttft.has_value()) return times;
  const std::optional<double> milliseconds = Decimal(*ttft);
  if (!milliseconds.has_value()) return Malformed(kTtftHeader, "milliseconds");
  times.first_token_by = received + absl::Milliseconds(*milliseconds);
  return times;
}

TimesOrError TimesOfFields(absl::Duration timeout, double ttft_target_s, MonotonicTime received,
                           const ApiLimits& limits) {
  if (!(ttft_target_s > 0))  // NaN is not, either
    return BadRequest("ttft_target_s", "ttft_target_s must be a number of seconds above 0");
  return RequestTimes{.deadline = Deadline(timeout, received, limits),
                      .first_token_by = received + absl::Seconds(ttft_target_s)};
}

TimesOrError TimesOfHeaders(const std::optional<std::string>& timeout, const std::optional<std::string>& ttft,
                            MonotonicTime received, const ApiLimits& limits) {
  if (!timeout.has_value()) return TimesOfCall(absl::InfiniteDuration(), ttft, received, limits);
  const std::optional<double> seconds = Decimal(*timeout);
  if (!seconds.has_value()) return Malformed(kTimeoutHeader, "seconds");
  return TimesOfCall(absl::Seconds(*seconds), ttft, received, limits);
}

}  // namespace somnus
