#include "coordinator/engine/queue_room.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace somnus {

absl::Status QueueRoom::Check(const std::vector<EngineRequest>& requests, int64_t num_preempted) const {
  int64_t tokens = 0, bytes = 0;
  absl::flat_hash_set<absl::string_view> ids;
  for (const EngineRequest& request : requests) {
    tokens += static_cast<int64_t>(request.prompt.size());
    bytes += request.queued_bytes;
    if (live_ids_.contains(request.id) || !ids.insert(request.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("request_id: ", request.id, " is in use"));
    }
  }
  const int64_t num_waiting = num_waiting_ + num_preempted;
  if (num_waiting + static_cast<int64_t>(requests.size()) > limits_.max_num_waiting) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", num_waiting, " of ",
                                                     limits_.max_num_waiting, " requests are waiting"));
  }
  if (waiting_tokens_ + tokens > limits_.max_num_waiting_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", waiting_tokens_, " of ",
                                                     limits_.max_num_waiting_tokens,
                                                     " prompt tokens are waiting"));
  }
  if (bytes > limits_.max_waiting_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: the request takes ", bytes, " bytes, more than may wait (", limits_.max_waiting_bytes, ")"));
  }
  if (waiting_bytes_ + bytes > limits_.max_waiting_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", waiting_bytes_, " of ",
                                                     limits_.max_waiting_bytes, " bytes are waiting"));
  }
  return absl::OkStatus();
}

void QueueRoom::Add(const EngineRequest& request) {
  live_ids_.insert(request.id);
  arrivals_.insert(request.arrival);
  // One that was scheduled elsewhere waits as one that was preempted.
  if (request.progress != nullptr && request.progress->was_scheduled) return;
  ++num_waiting_;
  waiting_tokens_ += static_cast<int64_t>(request.prompt.size());
  waiting_bytes_ += request.queued_bytes;
}

void QueueRoom::NoteScheduled(const EngineRequest& request) {
  --num_waiting_;
  waiting_tokens_ -= static_cast<int64_t>(request.prompt.size());
  waiting_bytes_ -= request.queued_bytes;
}

void QueueRoom::Remove(const EngineRequest& request, bool was_scheduled) {
  live_ids_.erase(request.id);
  if (const auto found = arrivals_.find(request.arrival); found != arrivals_.end()) arrivals_.erase(found);
  if (!was_scheduled) NoteScheduled(request);
}

void QueueRoom::Clear() {
  num_waiting_ = waiting_tokens_ = waiting_bytes_ = 0;
  live_ids_.clear();
  arrivals_.clear();
}

}  // namespace somnus
