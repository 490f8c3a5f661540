#pragma once
// Turns SIGTERM, SIGINT and SIGUSR1 into calls on a thread of its own.

#include <pthread.h>

#include <functional>
#include <thread>

namespace somnus {

class SignalWatcher {
 public:
  // Blocks these signals, and SIGUSR2 for its own use, in the calling thread: construct it before any other
  // thread, so that all inherit that. Ignores SIGPIPE. `on_signal` gets the signal, and 1 for the first one,
  // 2 for the second, ...
  explicit SignalWatcher(std::function<void(int signal, int count)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;

 private:
  std::thread thread_;
};

}  // namespace somnus
