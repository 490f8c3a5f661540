#pragma once
// Turns SIGTERM and SIGINT into calls on a thread of its own.

#include <pthread.h>

#include <functional>
#include <thread>

namespace somnus {

class SignalWatcher {
 public:
  // Blocks both signals, and SIGUSR2 for its own use, in the calling thread: construct it before any other
  // thread, so that all inherit that. Ignores SIGPIPE. `on_signal` gets 1 for the first signal, 2 for the
  // second, ...
  explicit SignalWatcher(std::function<void(int)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;

 private:
  std::thread thread_;
};

}  // namespace somnus
