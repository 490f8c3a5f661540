#pragma once
// The requests that arrive while a lifecycle command waits for open requests (SleepMode::kWait). The loop
// holds such requests back, outside of the scheduler, until the wait is over, so that the command does not
// wait for new requests, too. Plain state of the loop thread.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/request/expiry.h"
#include "coordinator/request/request.h"

namespace somnus {

class HeldBackRequests {
 public:
  // A command waits for open requests.
  bool waits() const { return waits_; }
  void set_waits(bool waits) { waits_ = waits; }
  int32_t count() const { return static_cast<int32_t>(requests_.size()); }

  void Add(std::vector<EngineRequest> requests) {
    requests_.insert(requests_.end(), std::make_move_iterator(requests.begin()),
                     std::make_move_iterator(requests.end()));
  }
  // All requests, in the order of arrival.
  std::vector<EngineRequest> TakeAll() { return std::exchange(requests_, {}); }
  // No command waits any longer: all requests, in the order of arrival.
  std::vector<EngineRequest> EndWait() {
    waits_ = false;
    return TakeAll();
  }
  // The requests that nobody holds back any longer: all where no command waits, else the requests that end
  // now, at their deadline or by an abort; the scheduler ends them.
  std::vector<EngineRequest> TakeDue(MonotonicTime now, const std::vector<std::string>& aborted) {
    if (!waits_) return TakeAll();
    const auto stays = [&](const EngineRequest& request) {
      return Until(request) > now && std::find(aborted.begin(), aborted.end(), request.id) == aborted.end();
    };
    const auto first = std::stable_partition(requests_.begin(), requests_.end(), stays);
    std::vector<EngineRequest> due(std::make_move_iterator(first), std::make_move_iterator(requests_.end()));
    requests_.erase(first, requests_.end());
    return due;
  }
  // When the time of a request is over next.
  MonotonicTime NextExpiry() const {
    MonotonicTime next = absl::InfiniteDuration();
    for (const EngineRequest& request : requests_) next = std::min(next, Until(request));
    return next;
  }

 private:
  static MonotonicTime Until(const EngineRequest& request) {
    return ExpiresAt(request, request.progress != nullptr && request.progress->was_scheduled);
  }

  bool waits_ = false;
  std::vector<EngineRequest> requests_;
};

}  // namespace somnus
