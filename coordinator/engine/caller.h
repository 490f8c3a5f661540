#pragma once
// The client of a lifecycle call, who may leave while its call waits.
//
// A front names it for the thread that makes the call (CallerScope), and whatever lets the call wait on that
// thread asks for it. A call that has not begun ends with its client: Cancelled, and nothing has changed. One
// that has begun goes on to its end, whoever listens. Threads on which an engine runs parts of a call have no
// caller: by then the call has begun. Thread safe: each thread has a caller of its own.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace somnus {

struct Caller {
  std::string name;                // for operators: "127.0.0.1:40112 (HTTP)"
  std::function<bool()> has_left;  // on any thread; once true it stays so
};

inline constexpr char kAbandoned[] = "the client has left before anything was changed";

// So long whoever waits for a call's turn does at most not look whether its client is still there.
inline constexpr absl::Duration kCallerLook = absl::Milliseconds(50);

// This thread's calls are that client's, as long as it lives.
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
// The same, for a call that has begun and goes on to its end, whoever listens.
Caller BegunCaller();
// Cancelled once the client of this thread's call has left.
absl::Status CheckCaller();

}  // namespace somnus
