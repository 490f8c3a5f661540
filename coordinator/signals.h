#pragma once
// SIGTERM and SIGINT as calls on a thread of their own.

#include <pthread.h>

#include <functional>
#include <thread>

namespace somnus {

class SignalWatcher {
 public:
  // Blocks both signals in the calling thread: construct first of all, so that every later thread inherits
  // that. `on_signal` gets 1 for the first signal, 2 for the second, ...
  explicit SignalWatcher(std::function<void(int)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;

 private:
  std::thread thread_;
};

}  // namespace somnus
