#pragma once
// The client of a lifecycle call, who may leave while its call waits.
//
// A front names the client for the thread that makes the call (CallerScope); code that lets the call wait on
// that thread asks for the client (CurrentCaller). A call that has not begun ends when its client leaves:
// Cancelled, and nothing has changed. A call that has begun goes on to its end without its client, too.
// Threads on which an engine runs parts of a call have no caller, by then the call has begun, or the caller
// that RunForCaller (run_for_caller.h) gives them. Thread safe: each thread has a caller of its own.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace somnus {

struct Caller {
  std::string name;                // for operators: "127.0.0.1:40112 (HTTP)"
  std::function<bool()> has_left;  // on any thread; stays true once true
};

inline constexpr char kAbandoned[] = "the client has left before anything was changed";

// While a call waits for its turn, two looks whether its client is still there are at most this far apart.
inline constexpr absl::Duration kCallerLook = absl::Milliseconds(50);

// As long as the scope lives, the calls of this thread belong to the client.
class CallerScope {
 public:
  explicit CallerScope(Caller caller);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;

 private:
  std::shared_ptr<const Caller> before_;
};

// Null: the server itself makes the calls of this thread.
std::shared_ptr<const Caller> CurrentCaller();
// The client's name, for a call that has begun: the caller never counts as having left.
Caller BegunCaller();
// Cancelled once the client of this thread's call has left.
absl::Status CheckCaller();

}  // namespace somnus
