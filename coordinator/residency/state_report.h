#pragma once
// The meaning of a state in which requests are not served: a line that /readyz, status, the log and gRPC show
// alike.

#include <string>

#include "absl/time/time.h"

namespace somnus {

// Plain data. While requests are served all parts are empty.
struct StateReport {
  std::string what;     // a sentence for clients: "The engine is paused; requests wait until it is resumed."
  std::string why;      // the cause of the state: "an operator has called pause"
  absl::Time since;     // when the state began
  std::string way_out;  // the command that ends the state, or the event that ends the state by itself

  bool serving() const { return what.empty(); }
  // "WHAT Why: WHY. Since: 2026-01-31T12:00:00Z. Way out: WAY_OUT." A long reason is cut, so that the way out
  // stays in messages of bounded length. Empty while requests are served.
  std::string Line() const;
};

}  // namespace somnus
