#include "coordinator/engine/queue_room.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/request/queue_refusal.h"

namespace somnus {

void QueueRoom::Waiting::Add(const EngineRequest& request, int sign) {
  num += sign;
  tokens += sign * static_cast<int64_t>(request.prompt.size());
  bytes += sign * request.queued_bytes;
}

absl::Status QueueRoom::Check(const std::vector<EngineRequest>& requests, int64_t num_preempted) const {
  Waiting more;
  absl::flat_hash_set<absl::string_view> ids;
  for (const EngineRequest& request : requests) {
    more.Add(request, 1);
    if (live_ids_.contains(request.id) || !ids.insert(request.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("request_id: ", request.id, " is in use"));
    }
  }
  const int64_t num_waiting = waiting_.num + num_preempted;
  if (num_waiting + more.num > limits_.max_num_waiting) {
    return QueueFull(QueueBound::kRequests, absl::StrCat("the queue is full: ", num_waiting, " of ",
                                                         limits_.max_num_waiting, " requests are waiting"));
  }
  if (waiting_.tokens + more.tokens > limits_.max_num_waiting_tokens) {
    return QueueFull(QueueBound::kTokens,
                     absl::StrCat("the queue is full: ", waiting_.tokens, " of ",
                                  limits_.max_num_waiting_tokens, " prompt tokens are waiting"));
  }
  if (more.bytes > limits_.max_waiting_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("prompt: the request takes ", more.bytes,
                                                   " bytes, more than may wait (", limits_.max_waiting_bytes,
                                                   ")"));
  }
  if (waiting_.bytes + more.bytes > limits_.max_waiting_bytes) {
    return QueueFull(QueueBound::kBytes, absl::StrCat("the queue is full: ", waiting_.bytes, " of ",
                                                      limits_.max_waiting_bytes, " bytes are waiting"));
  }
  return requests.empty() ? absl::OkStatus() : CheckUser(requests.front().user, more);
}

// The requests of one call are one user's. A user of whom nobody waits may send what the whole queue takes:
// what is larger than a share must not be refused for ever.
absl::Status QueueRoom::CheckUser(const std::string& user, const Waiting& more) const {
  const auto found = waiting_by_user_.find(user);
  if (found == waiting_by_user_.end()) return absl::OkStatus();
  const Waiting& waiting = found->second;
  const auto exceeds = [this](int64_t count, int64_t bound) {
    return static_cast<double>(count) > limits_.max_user_share * static_cast<double>(bound);
  };
  if (exceeds(waiting.num + more.num, limits_.max_num_waiting) ||
      exceeds(waiting.tokens + more.tokens, limits_.max_num_waiting_tokens) ||
      exceeds(waiting.bytes + more.bytes, limits_.max_waiting_bytes)) {
    return QueueFull(QueueBound::kUserShare,
                     absl::StrCat("the user's share of the queue is full: ", waiting.num,
                                  " of its requests with ", waiting.tokens, " prompt tokens are waiting"));
  }
  return absl::OkStatus();
}

void QueueRoom::Add(const EngineRequest& request) {
  live_ids_.insert(request.id);
  arrivals_.insert(request.arrival);
  // A request that was scheduled elsewhere waits as a preempted request.
  if (request.progress != nullptr && request.progress->was_scheduled) return;
  Count(request, 1);
}

void QueueRoom::NoteScheduled(const EngineRequest& request) { Count(request, -1); }

void QueueRoom::Count(const EngineRequest& request, int sign) {
  waiting_.Add(request, sign);
  if (limits_.max_user_share >= 1) return;
  const auto user = waiting_by_user_.try_emplace(request.user).first;
  user->second.Add(request, sign);
  if (user->second.num == 0) waiting_by_user_.erase(user);
}

void QueueRoom::Remove(const EngineRequest& request, bool was_scheduled) {
  live_ids_.erase(request.id);
  if (const auto found = arrivals_.find(request.arrival); found != arrivals_.end()) arrivals_.erase(found);
  if (!was_scheduled) NoteScheduled(request);
}

void QueueRoom::Clear() {
  waiting_ = {};
  waiting_by_user_.clear();
  live_ids_.clear();
  arrivals_.clear();
}

}  // namespace somnus
