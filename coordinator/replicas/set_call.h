#pragma once
// A lifecycle call of a whole engine with replicas, while the call is under way: its turn, and what the
// engine's state says meanwhile. Both objects are for one thread at a time, and another thread than the one
// that made them may destroy them; `parts` is borrowed.

#include <optional>

#include "absl/status/status.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/set_parts.h"

namespace somnus {

// The turn of a call. Calls have their turns one after the other.
class CallTurn {
 public:
  // Waits for the turn. `name`: as of LifecycleCallStats. `ends_waits`: the wait of the call that has the
  // turn ends.
  CallTurn(const SetParts& parts, const char* name, bool ends_waits);
  ~CallTurn();
  CallTurn(const CallTurn&) = delete;

  // Ok once the call has its turn. Cancelled: the client of the call has left before.
  const absl::Status& status() const { return status_; }
  // As status; Declined: the server is shutting down.
  absl::Status Check() const;
  // Lets further calls have their turns until Retake, while this call goes on. For a call whose status is ok.
  void Park();
  absl::Status Retake();

 private:
  const SetParts& parts_;
  const char* const name_;
  absl::Status status_;
  bool parked_ = false;
};

// From construction to destruction the engine's state says what the call does with the whole engine. At the
// end no request is held back any more.
class CallScope {
 public:
  CallScope(const SetParts& parts, SetCall call);
  ~CallScope();
  CallScope(const CallScope&) = delete;

  // The call does something else from now on.
  void Set(SetCall call);
  // Ends the open requests as the mode says: the requests in the queue and at the replicas. Requests that
  // come later stay in the queue until the scope ends. A wait ends, too, when no replica serves any more, nor
  // will serve after a recovery: the requests stay open. Aborted: a later call has ended the wait.
  absl::Status Settle(SleepMode mode);

 private:
  const SetParts& parts_;
};

}  // namespace somnus
