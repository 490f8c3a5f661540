#include "coordinator/replicas/set_call.h"

#include <string>
#include <vector>

#include "base/status_macros.h"

namespace somnus {

CallTurn::CallTurn(const SetParts& parts, const char* name, bool ends_waits) : parts_(parts), name_(name) {
  if (ends_waits) parts_.waits.NoteInterruption(1);
  status_ = parts_.turns.Take(name_);
  if (ends_waits) parts_.waits.NoteInterruption(-1);
}

CallTurn::~CallTurn() {
  if (parked_) parts_.turns.EndParked();
  if (status_.ok()) parts_.turns.Give();
}

absl::Status CallTurn::Check() const {
  RETURN_IF_ERROR(status_);
  return parts_.waits.CheckDrain();
}

void CallTurn::Park() {
  parked_ = true;
  parts_.turns.Park();
}

absl::Status CallTurn::Retake() {
  status_ = parts_.turns.Take(name_);
  return status_;
}

CallScope::CallScope(const SetParts& parts, SetCall call) : parts_(parts) { Set(call); }

CallScope::~CallScope() {
  parts_.queue.EndHoldBack();
  Set(SetCall::kNone);
}

void CallScope::Set(SetCall call) {
  parts_.board.NoteCall(call);
  parts_.queue.Wake();
}

absl::Status CallScope::Settle(SleepMode mode) {
  const EngineState state = parts_.board.state();
  if (mode == SleepMode::kKeep) return absl::OkStatus();
  if (mode == SleepMode::kWait && (state == EngineState::kPaused || state == EngineState::kAsleep))
    return absl::OkStatus();
  const std::vector<std::string> open = parts_.queue.HoldBackLater();
  if (mode == SleepMode::kAbort) {
    for (const std::string& id : open) parts_.queue.Abort(id);
  }
  // Replicas may come back from a recovery asleep: then no request that waits ends by itself any more.
  const auto stands = [&] { return mode == SleepMode::kWait && parts_.loops.NobodyServes(); };
  const auto settled = [&] {
    return parts_.queue.num_awaited() == 0 || stands() ||
           (mode == SleepMode::kWait && parts_.waits.WantsTurn());
  };
  RETURN_IF_ERROR(parts_.waits.AwaitInCall(settled, absl::InfiniteDuration()));
  if (parts_.queue.num_awaited() == 0 || stands()) return absl::OkStatus();
  return absl::AbortedError("another call has ended the wait for open requests");
}

}  // namespace somnus
