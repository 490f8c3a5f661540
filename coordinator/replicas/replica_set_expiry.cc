// ReplicaSet's part for time: requests that expire in the queue, and those that are refused because no
// replica could make their first token in time. Replicas look after the requests that they have in the same
// way.

#include <algorithm>
#include <optional>
#include <utility>

#include "coordinator/replicas/replica_set.h"

namespace somnus {

// A choice whose prompt another one is computing needs no time of its own for its first token.
bool ReplicaSet::NeedsFirstToken(const Entry& entry, const EngineRequest& request) const {
  if (entry.was_scheduled) return false;
  const auto source = entries_.find(request.fork_of);
  return source == entries_.end() || !source->second.was_scheduled;
}

MonotonicTime ReplicaSet::ExpiryOf(const Entry& entry, const EngineRequest& request) const {
  return ExpiresAt(request, !NeedsFirstToken(entry, request));
}

void ReplicaSet::TakeExpired(std::vector<Ending>* endings) {
  const MonotonicTime now = smallest_.monotonic_now();
  if (next_expiry_ > now) return;
  next_expiry_ = absl::InfiniteDuration();
  std::vector<std::pair<std::string, ExpiryCause>> expired;
  for (const auto& [key, sequence] : queue_) {
    const EngineRequest& request = sequence->request;
    const Entry& entry = entries_.at(request.id);
    const MonotonicTime at = ExpiryOf(entry, request);
    if (at <= now) {
      expired.emplace_back(request.id, CauseOfExpiry(request, entry.was_scheduled, now));
    } else {
      next_expiry_ = std::min(next_expiry_, at);
    }
  }
  for (const auto& [id, cause] : expired) endings->push_back(EndExpired(id, cause));
}

ReplicaSet::Ending ReplicaSet::EndExpired(const std::string& id, ExpiryCause cause) {
  Ending ending = EndQueued(id, FinishReason::kError, ExpiryError(cause));
  ending.expired = cause;
  return ending;
}

void ReplicaSet::TakeHopeless(std::vector<Ending>* endings) {
  std::string refused;
  for (const std::string& id : std::exchange(unjudged_, {})) {
    const auto it = entries_.find(id);
    if (it == entries_.end() || it->second.replica >= 0) continue;
    const EngineRequest& request = it->second.sequence->request;
    // Other choices of a prompt come directly after the first one, and share its fate.
    const bool was_refused = !refused.empty() && request.fork_of == refused;
    if (!was_refused && !IsHopeless(it->second)) continue;
    if (!was_refused) refused = id;
    endings->push_back(EndExpired(id, ExpiryCause::kTtftEstimate));
  }
}

// What is ahead in the queue is shared by the replicas that serve, and the quickest of them is asked.
bool ReplicaSet::IsHopeless(const Entry& entry) const {
  const EngineRequest& request = entry.sequence->request;
  const MonotonicTime now = smallest_.monotonic_now();
  if (request.first_token_by <= now || !request.fork_of.empty()) return false;
  int64_t ahead = 0, num_awake = 0, known_blocks = 0;
  const ServiceKey own_key = KeyOf(*entry.sequence);
  for (auto it = queue_.begin(); it != queue_.end() && it->first < own_key; ++it) {
    const EngineRequest& other = it->second->request;
    if (other.fork_of.empty()) ahead += entries_.at(other.id).tokens;
  }
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (replicas_[i].loop->state() != EngineState::kAwake) continue;
    ++num_awake;
    ahead += replicas_[i].loop->backlog().waiting_tokens;
    known_blocks = std::max(known_blocks, router_.CountKnown(entry.chain, static_cast<int>(i)));
  }
  if (num_awake == 0) return false;
  const int64_t own = entry.tokens - known_blocks * smallest_.scheduler.blocks.block_size;
  const auto in_time = [&](const Replica& replica) {
    if (replica.loop->state() != EngineState::kAwake) return false;
    const std::optional<absl::Duration> time = replica.loop->PrefillTime(ahead / num_awake + own);
    return !time.has_value() || now + *time <= request.first_token_by;
  };
  return std::none_of(replicas_.begin(), replicas_.end(), in_time);
}

}  // namespace somnus
