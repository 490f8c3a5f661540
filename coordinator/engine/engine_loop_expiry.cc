// EngineLoop's part for time: requests that end at their deadlines, and those that are refused because their
// first token would come too late.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/engine_loop.h"

namespace somnus {

void EngineLoop::AddToScheduler(std::vector<EngineRequest> requests) {
  std::string refused;
  for (EngineRequest& request : requests) {
    // Other choices of a prompt come directly after the first one, and share its fate.
    const bool was_refused = !refused.empty() && request.fork_of == refused;
    const SequencePtr sequence = scheduler_.Add(std::move(request));
    if (!was_refused && !IsHopeless(*sequence)) continue;
    if (!was_refused) refused = sequence->request.id;
    scheduler_.Abort(sequence->request.id);
    EndExpired({sequence, ExpiryCause::kTtftEstimate});
  }
}

bool EngineLoop::IsHopeless(const Sequence& sequence) {
  const EngineRequest& request = sequence.request;
  const bool may_be = !sequence.was_scheduled && request.first_token_by != absl::InfiniteDuration() &&
                      request.fork_of.empty();
  const MonotonicTime now = options_.monotonic_now();
  if (!may_be || request.first_token_by <= now) return false;
  const std::optional<absl::Duration> time = PrefillTime(scheduler_.BacklogOf(sequence));
  return time.has_value() && now + *time > request.first_token_by;
}

void EngineLoop::EndExpired(const ExpiredSequence& expired) {
  if (observer_ != nullptr) observer_->OnRequestExpired(expired.cause);
  End(expired.sequence, FinishReason::kError, ExpiryError(expired.cause));
}

MonotonicTime EngineLoop::NextExpiry() const {
  MonotonicTime next = scheduler_.NextExpiry();
  for (const EngineRequest& request : held_back_) next = std::min(next, HeldBackUntil(request));
  return next;
}

MonotonicTime EngineLoop::HeldBackUntil(const EngineRequest& request) {
  return ExpiresAt(request, request.progress != nullptr && request.progress->was_scheduled);
}

std::optional<absl::Duration> EngineLoop::PrefillTime(int64_t num_tokens) const {
  absl::MutexLock lock(&mu_);
  return prefill_speed_.TimeFor(num_tokens, options_.monotonic_now());
}

void EngineLoop::NotePrefill(const StepEvent& step) {
  const int32_t num_tokens = step.num_tokens - step.num_decodes;
  if (num_tokens == 0) return;
  absl::MutexLock lock(&mu_);
  prefill_speed_.Observe(num_tokens, step.duration, step.replied);
}

}  // namespace somnus
