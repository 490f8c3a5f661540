#pragma once
// Requests that wait until the workers have read the requests' adapters, in the order of their arrival,
// within the bounds of a queue. The owner may put the requests of one adapter behind all others. Requests
// that were submitted together stay together. A value; its owner guards it.

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

  // `requests`: at least one, all with the same adapter_name. Errors as QueueRoom::Check.
  absl::Status Add(Requests requests);
  // Of the requests that have waited for the longest time; empty: none wait.
  std::string FirstName() const { return groups_.empty() ? "" : groups_.front().front().adapter_name; }
  bool Awaits(const std::string& name) const;
  // The requests for the adapter wait behind all others.
  void PutLast(const std::string& name);
  // The requests that were submitted together, and have waited for the adapter for the longest time; empty:
  // none wait.
  Requests TakeFirst(const std::string& name);
  // Requests that were taken wait again, before all others.
  void AddFirst(Requests requests);
  // The request of that id, which waits no longer; not set: it does not wait here.
  std::optional<EngineRequest> Remove(const std::string& id);
  // Infinite: none of the requests expires.
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
