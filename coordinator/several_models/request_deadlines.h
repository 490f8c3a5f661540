#pragma once
// When the open requests of one model need their next tokens, by the times that the model's clients want.
//
// The first token of a request is in time within ttft of the request's arrival, and each further token within
// a further tpot: time that a token comes early is not lost. Without ttft, further tokens are counted from
// the first token.
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

  // The requests arrive now. Each request gets a sink around its own sink. The new sink counts the request's
  // tokens until the request ends or is dropped.
  void Watch(std::vector<EngineRequest>* requests);
  // When the next token is due of the request that needs a token first; infinite where no request has a time
  // for its next token.
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
