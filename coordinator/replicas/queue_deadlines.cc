#include "coordinator/replicas/queue_deadlines.h"

#include <algorithm>

namespace somnus {
namespace {

MonotonicTime ExpiryOf(const AcceptedRequest& entry, const EngineRequest& request,
                       const AcceptedRequests& accepted) {
  return ExpiresAt(request, !QueueDeadlines::NeedsFirstToken(entry, request, accepted));
}

}  // namespace

bool QueueDeadlines::NeedsFirstToken(const AcceptedRequest& entry, const EngineRequest& request,
                                     const AcceptedRequests& accepted) {
  if (entry.was_scheduled) return false;
  const auto source = accepted.find(request.fork_of);
  return source == accepted.end() || !source->second.was_scheduled;
}

void QueueDeadlines::NoteArrival(const EngineRequest& request) {
  if (request.first_token_by != absl::InfiniteDuration()) unjudged_.push_back(request.id);
}

void QueueDeadlines::NoteQueued(const AcceptedRequest& entry, const AcceptedRequests& accepted) {
  next_ = std::min(next_, ExpiryOf(entry, entry.sequence->request, accepted));
}

std::vector<std::pair<std::string, ExpiryCause>> QueueDeadlines::Expired(const Queue& queue,
                                                                         MonotonicTime now) {
  std::vector<std::pair<std::string, ExpiryCause>> expired;
  if (next_ > now) return expired;
  next_ = absl::InfiniteDuration();
  for (const auto& [key, sequence] : queue.waiting) {
    const EngineRequest& request = sequence->request;
    const AcceptedRequest& entry = queue.accepted.at(request.id);
    const MonotonicTime at = ExpiryOf(entry, request, queue.accepted);
    if (at <= now) {
      expired.emplace_back(request.id, CauseOfExpiry(request, entry.was_scheduled, now));
    } else {
      next_ = std::min(next_, at);
    }
  }
  return expired;
}

std::optional<std::string> QueueDeadlines::NextHopeless(const Queue& queue, MonotonicTime now) {
  while (!unjudged_.empty()) {
    const std::string id = std::move(unjudged_.front());
    unjudged_.pop_front();
    const auto it = queue.accepted.find(id);
    if (it == queue.accepted.end() || it->second.replica >= 0) continue;
    const EngineRequest& request = it->second.sequence->request;
    // Further choices of a prompt come directly after the first choice, and share the first choice's fate.
    const bool was_refused = !refused_.empty() && request.fork_of == refused_;
    if (!was_refused && !IsHopeless(it->second, queue, now)) continue;
    if (!was_refused) refused_ = id;
    return id;
  }
  refused_.clear();
  return std::nullopt;
}

// The replicas that serve share what is ahead in the queue, and the quickest replica is asked.
bool QueueDeadlines::IsHopeless(const AcceptedRequest& entry, const Queue& queue, MonotonicTime now) const {
  const EngineRequest& request = entry.sequence->request;
  if (request.first_token_by <= now || !request.fork_of.empty()) return false;
  int64_t ahead = 0, num_awake = 0, known_tokens = 0;
  const ServiceKey own_key = KeyOf(*entry.sequence);
  for (auto it = queue.waiting.begin(); it != queue.waiting.end() && it->first < own_key; ++it) {
    const EngineRequest& earlier = it->second->request;
    if (earlier.fork_of.empty()) ahead += queue.accepted.at(earlier.id).tokens;
  }
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (!loops_.IsAwake(i)) continue;
    ++num_awake;
    ahead += loops_.loop(i).backlog().waiting_tokens;
    known_tokens = std::max(known_tokens, queue.places.KnownTokens(entry, static_cast<int>(i)));
  }
  if (num_awake == 0) return false;
  const int64_t tokens = ahead / num_awake + entry.tokens - known_tokens;
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (!loops_.IsAwake(i)) continue;
    const std::optional<absl::Duration> time = loops_.loop(i).PrefillTime(tokens);
    if (!time.has_value() || now + *time <= request.first_token_by) return false;
  }
  return true;
}

}  // namespace somnus
