#pragma once
// Tells the service manager that started this process (systemd, with Type=notify) how the process gets on:
// datagrams of NAME=VALUE lines to the Unix socket that NOTIFY_SOCKET names. Without NOTIFY_SOCKET nothing
// happens.
//
//   ServiceManager manager = ServiceManager::TakeFromEnvironment();
//   ...                       // load, bind
//   manager.Ready();
//   manager.Watch([&] { return Works(); });
//
// Thread safe, except for construction. Owns a thread from Watch on; the destructor ends it.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/discovery.h"
#include "base/monotonic.h"

namespace somnus {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  explicit ServiceManager(const Environment& environment);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;

  // Also removes the variables, so that no child process speaks for this process. There must be no other
  // thread.
  static std::unique_ptr<ServiceManager> TakeFromEnvironment();

  // The process serves; `status` says what the process serves, for people.
  void Ready(const std::string& status);
  // The process ends, by its own decision or as told.
  void Stopping();
  // From now on says that the process is alive, three times in the time after which the manager would kill
  // the process, as long as `alive` returns true. `alive` runs on a thread of this object, and may take long:
  // nothing is sent while `alive` runs. Does nothing where the manager does not watch. To be called once.
  void Watch(std::function<bool()> alive);

 private:
  void Send(const std::string& lines) const;

  std::string socket_;                                    // empty: nobody listens
  absl::Duration watch_interval_ = absl::ZeroDuration();  // zero: nobody watches
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace somnus
