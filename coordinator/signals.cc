#include "coordinator/signals.h"

#include <signal.h>

#include <utility>

namespace somnus {

SignalWatcher::SignalWatcher(std::function<void(int, int)> on_signal) {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2})
    sigaddset(&set, signal);  // USR2: sent by the destructor
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([set, on_signal = std::move(on_signal)] {
    for (int count = 1;; ++count) {
      int received = 0;
      if (sigwait(&set, &received) != 0 || received == SIGUSR2) return;
      on_signal(received, count);
    }
  });
}

SignalWatcher::~SignalWatcher() {
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

}  // namespace somnus
