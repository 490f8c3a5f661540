#pragma once
// Which replicas take a request now, and which of these replicas gets the request.
//
// A replica has room while it has fewer open requests than it can run and an eighth more, and while what
// waits there is no more than two steps' budget and nothing that was preempted. That is enough for the next
// admissions of the replica, and no more: a request in the common queue can still go to the replica that is
// free first. The router chooses among the replicas with room (router.h).
//
// A value without a lock; the queue of the replicas owns and guards the object.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/replicas/accepted_request.h"
#include "coordinator/replicas/replica_loops.h"
#include "coordinator/replicas/router.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

class ReplicaPlaces {
 public:
  // `max_blocks`: the blocks of all prefix caches. `scheduler` and `loops` are borrowed.
  ReplicaPlaces(const SchedulerOptions* scheduler, int64_t max_blocks, const ReplicaLoops* loops,
                size_t num_replicas);

  std::vector<Router::Candidate> WithRoom() const;
  // The replica for `request`, of `candidates`, which are not empty.
  int Choose(const AcceptedRequest& request, const std::vector<Router::Candidate>& candidates);
  // The replica has taken the request, which names the replica.
  void NoteTaken(const AcceptedRequest& request);
  // The request, which names the replica, has ended there or was handed over.
  void NoteLeft(const AcceptedRequest& request);
  // The tokens at the front of the prompt that the replica is known to have cached.
  int64_t KnownTokens(const AcceptedRequest& request, int replica) const;
  // The replica's prefix cache is empty.
  void Forget(int replica) { router_.Forget(replica); }
  // While `held_off`, the replica gets no request.
  void HoldOff(size_t replica, bool held_off) { places_[replica].held_off = held_off; }

  int64_t num_open(size_t replica) const { return places_[replica].num_open; }
  // That the replica has taken since the start.
  int64_t num_requests(size_t replica) const { return places_[replica].num_requests; }

 private:
  struct Place {
    int64_t load =
        0;  // tokens of the open requests: of the prompts, and the output on arrival at the replica
    int64_t num_open = 0;
    int64_t num_requests = 0;
    bool held_off = false;
  };
  bool HasRoom(size_t replica) const;

  const SchedulerOptions& scheduler_;
  const ReplicaLoops& loops_;
  Router router_;
  std::vector<Place> places_;
};

}  // namespace somnus
