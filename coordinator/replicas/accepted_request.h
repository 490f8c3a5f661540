#pragma once
// A request that an engine with replicas has accepted, and that has not ended. Plain values, which the queue
// of the replicas owns and guards (replica_queue.h).

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "coordinator/replicas/router.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

struct AcceptedRequest {
  int replica = -1;                            // that has the request; -1: the request is in the queue
  SequencePtr sequence;                        // while the request is in the queue
  std::shared_ptr<UserAccounts::Visit> visit;  // null where users have no accounts
  PrefixChain chain;
  int64_t order = 0;   // of the arrival
  int64_t tokens = 0;  // that the request adds to a replica's load
  bool was_scheduled = false;
  int64_t num_charged = 0;  // as of RequestProgress
  bool aborted = false;
};
using AcceptedRequests = absl::flat_hash_map<std::string, AcceptedRequest>;

}  // namespace somnus
