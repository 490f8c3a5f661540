#pragma once
// Since when an engine is in its state, and why. A value; the owner guards the object.

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/residency/engine_state.h"

namespace somnus {

struct StateNote {
  absl::Time since = absl::InfinitePast();
  std::string why;  // empty: the server's own decision
};

class StateHistory {
 public:
  // To be called at every change of the state. `why` is empty where the reason of the state before still
  // holds, as from falling_asleep to asleep. After a recovery the state before the recovery goes on.
  void NoteState(EngineState to, absl::Time now, std::string why) {
    const bool recovered = state_ == EngineState::kRecovering && to == before_;
    if (to == EngineState::kRecovering && state_ != EngineState::kRecovering) {
      before_ = state_;
      note_before_ = note_;
    }
    state_ = to;
    if (recovered && why.empty()) {
      note_ = note_before_;
      return;
    }
    note_.since = now;
    if (!why.empty()) note_.why = std::move(why);
  }
  // An operator asks for the state that the engine is in: from now on that is the reason of the state.
  void NoteReason(std::string why) { note_.why = std::move(why); }
  const StateNote& note() const { return note_; }

 private:
  EngineState state_ = EngineState::kLoading;
  StateNote note_;
  EngineState before_ = EngineState::kLoading;  // the last recovery
  StateNote note_before_;
};

}  // namespace somnus
