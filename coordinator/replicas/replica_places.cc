#include "coordinator/replicas/replica_places.h"

#include <algorithm>

namespace somnus {

ReplicaPlaces::ReplicaPlaces(const SchedulerOptions* scheduler, int64_t max_blocks, const ReplicaLoops* loops,
                             size_t num_replicas)
    : scheduler_(*scheduler),
      loops_(*loops),
      router_(scheduler->blocks.block_size, max_blocks),
      places_(num_replicas) {}

bool ReplicaPlaces::HasRoom(size_t replica) const {
  if (places_[replica].held_off || !loops_.IsAwake(replica)) return false;
  const EngineLoop::Backlog backlog = loops_.loop(replica).backlog();
  const int64_t ahead = std::max(1, scheduler_.max_num_seqs / 8);
  return backlog.num_open < scheduler_.max_num_seqs + ahead && backlog.num_preempted == 0 &&
         backlog.waiting_tokens < int64_t{2} * scheduler_.max_num_batched_tokens;
}

std::vector<Router::Candidate> ReplicaPlaces::WithRoom() const {
  std::vector<Router::Candidate> candidates;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (HasRoom(i)) candidates.push_back({static_cast<int>(i), places_[i].load});
  }
  return candidates;
}

int ReplicaPlaces::Choose(const AcceptedRequest& request, const std::vector<Router::Candidate>& candidates) {
  return router_.Choose(request.chain, candidates);
}

void ReplicaPlaces::NoteTaken(const AcceptedRequest& request) {
  router_.Note(request.chain, request.replica);
  Place& place = places_[request.replica];
  ++place.num_open;
  ++place.num_requests;
  place.load += request.tokens;
}

void ReplicaPlaces::NoteLeft(const AcceptedRequest& request) {
  Place& place = places_[request.replica];
  --place.num_open;
  place.load -= request.tokens;
}

int64_t ReplicaPlaces::KnownTokens(const AcceptedRequest& request, int replica) const {
  return router_.CountKnown(request.chain, replica) * scheduler_.blocks.block_size;
}

}  // namespace somnus
