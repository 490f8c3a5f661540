#pragma once
// Turns SIGTERM, SIGINT and SIGUSR1 into calls on a thread of its own.

#include <pthread.h>

#include <functional>
#include <thread>

namespace somnus {

class SignalWatcher {
 public:
  // Blocks these signals, and SIGUSR2 for its own use, in the calling thread: the object has to be
  // constructed before any other thread, so that all threads inherit the mask. Ignores SIGPIPE. `on_signal`
  // gets the signal, and how many signals have come: 1, 2, ...
  explicit SignalWatcher(std::function<void(int signal, int count)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;

 private:
  std::thread thread_;
};

}  // namespace somnus
