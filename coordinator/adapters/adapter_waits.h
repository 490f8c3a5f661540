#pragma once
// Requests that wait until the workers have read the requests' adapters, in the order of arrival, within the
// bounds of a queue. Requests that were submitted together stay together. Not thread safe.

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/queue_room.h"
#include "coordinator/request/request.h"

namespace somnus {

class AdapterWaits {
 public:
  using Requests = std::vector<EngineRequest>;

  explicit AdapterWaits(const QueueLimits& limits) : room_(limits) {}

  // `requests` are not empty, and have the same adapter_name. Errors as QueueRoom::Check.
  absl::Status Add(Requests requests);
  // The adapter_name of the first requests in the order; empty: no request waits.
  std::string FirstName() const { return groups_.empty() ? "" : groups_.front().front().adapter_name; }
  bool Awaits(const std::string& name) const;
  // Moves the requests for the adapter to the end of the order.
  void PutLast(const std::string& name);
  // Removes the first requests for the adapter that were submitted together. Empty: no request for the
  // adapter waits.
  Requests TakeFirst(const std::string& name);
  // Puts requests back that TakeFirst has removed, at the front of the order.
  void AddFirst(Requests requests);
  // Removes the request with the id. Not set: no such request waits.
  std::optional<EngineRequest> Remove(const std::string& id);
  // Infinite: no request expires.
  MonotonicTime NextExpiry() const;
  Requests TakeExpired(MonotonicTime now);
  Requests TakeAll();

  bool empty() const { return groups_.empty(); }
  int64_t num_waiting() const { return room_.num_live(); }
  int64_t waiting_tokens() const { return room_.waiting_tokens(); }
  std::optional<absl::Time> oldest_arrival() const { return room_.oldest_arrival(); }

 private:
  // Takes the requests that `taken` is true of.
  template <typename Predicate>
  Requests TakeIf(const Predicate& taken);

  QueueRoom room_;
  std::list<Requests> groups_;  // none is empty
};

}  // namespace somnus
