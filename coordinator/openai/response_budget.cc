#include "coordinator/openai/response_budget.h"

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

// Responses up to this size are not refused for the total's sake: the number of connections bounds such
// responses.
constexpr int64_t kSmallResponseBytes = 64 << 10;

}  // namespace

std::optional<ApiError> ResponseBudget::Part::Hold(int64_t bytes) {
  const int64_t grown = bytes - bytes_;
  bytes_ = bytes;
  const int64_t all = budget_->buffered_bytes_ += grown;
  if (bytes > budget_->max_response_bytes_) {
    return BadRequest("", absl::StrCat("The response takes more than ", budget_->max_response_bytes_,
                                       " bytes: ask for fewer choices, tokens or log-probabilities, or "
                                       "for a stream."));
  }
  if (bytes > kSmallResponseBytes && grown > 0 && all > budget_->max_buffered_bytes_)
    return ApiError{503, "Too many large responses at once.", ""};
  return std::nullopt;
}

}  // namespace somnus
