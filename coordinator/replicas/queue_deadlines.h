#pragma once
// Time in the common queue: requests that expire there, and requests that are refused because no replica
// could make the first token in time. Each replica watches its own requests in the same way.
//
// A value without a lock; the queue of the replicas owns and guards the object. The content of the queue
// comes as an argument.

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/monotonic.h"
#include "coordinator/replicas/accepted_request.h"
#include "coordinator/replicas/replica_loops.h"
#include "coordinator/replicas/replica_places.h"
#include "coordinator/request/expiry.h"
#include "coordinator/scheduler/waiting_queue.h"

namespace somnus {

class QueueDeadlines {
 public:
  struct Queue {
    const WaitingQueue& waiting;
    const AcceptedRequests& accepted;
    const ReplicaPlaces& places;
  };

  // `loops` is borrowed.
  explicit QueueDeadlines(const ReplicaLoops* loops) : loops_(*loops) {}

  // False: the request has been scheduled, or another choice of the same prompt has.
  static bool NeedsFirstToken(const AcceptedRequest& entry, const EngineRequest& request,
                              const AcceptedRequests& accepted);

  // The request has arrived.
  void NoteArrival(const EngineRequest& request);
  // The request is in the queue, perhaps again.
  void NoteQueued(const AcceptedRequest& entry, const AcceptedRequests& accepted);

  // The queued requests whose time is over, each with the cause.
  std::vector<std::pair<std::string, ExpiryCause>> Expired(const Queue& queue, MonotonicTime now);
  // Judges the requests that have arrived since the last call, in order, up to the first request that must be
  // refused; to be called again once that request has left the queue. Not set: all are judged.
  std::optional<std::string> NextHopeless(const Queue& queue, MonotonicTime now);
  // When Expired is due again.
  MonotonicTime next() const { return next_; }

 private:
  bool IsHopeless(const AcceptedRequest& entry, const Queue& queue, MonotonicTime now) const;

  const ReplicaLoops& loops_;
  std::deque<std::string> unjudged_;               // arrivals with a time for their first token
  std::string refused_;                            // refused last, and not a choice of an earlier request
  MonotonicTime next_ = absl::InfiniteDuration();  // the first expiry in the queue, or an earlier time
};

}  // namespace somnus
