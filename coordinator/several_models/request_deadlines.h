#pragma once
// When the open requests of one model need their next tokens, by the times that its clients want.
//
// A request has its first token in time within ttft of its arrival, and each further one within another tpot:
// what comes early is not lost. Without ttft the first token is what others are counted from.
//
// Thread safe. The sinks that Watch makes may outlive this object.

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/request/request.h"

namespace somnus {

struct TokenTargets {
  absl::Duration ttft;  // from a request's arrival to its first token; 0: none
  absl::Duration tpot;  // from a token to the next one; 0: none
};

class RequestDeadlines {
 public:
  RequestDeadlines(TokenTargets targets, MonotonicClock now);

  // The requests arrive now. Each gets a sink around its own, which counts its tokens until the request ends
  // or is dropped.
  void Watch(std::vector<EngineRequest>* requests);
  // Of the next token of the request that needs one first; infinite where none has a time for it.
  MonotonicTime Earliest() const;
  const TokenTargets& targets() const { return targets_; }

 private:
  struct Open;
  class Sink;

  const TokenTargets targets_;
  const MonotonicClock now_;
  const std::shared_ptr<Open> open_;
};

}  // namespace somnus
