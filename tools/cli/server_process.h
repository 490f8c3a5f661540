#pragma once
// A server of this process's own: a coordinator on free ports of this host, with keys that nobody else knows.
//
// The coordinator ends with this object, and when this process ends in any way (the kernel sends SIGTERM). It
// is in a process group of its own: a terminal's Ctrl-C is this process's to handle. A thread reads the
// server's log, so that the server never waits for a reader. For one thread.

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace somnus::cli {

class ServerProcess {
 public:
  // Starts `coordinator` with `args`; the ports and the keys are added. An error: it cannot be started.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::string& coordinator,
                                                              const std::vector<std::string>& args);
  // Ends the server and its workers; kills what has not ended after 20 seconds.
  ~ServerProcess();

  // Until requests are served; returns the port. Calls `waits` several times a second. FailedPrecondition:
  // the server has ended, with its last words. Cancelled: `*cancel` is true.
  absl::StatusOr<int> AwaitReady(const std::atomic<bool>* cancel, const std::function<void()>& waits);

  const std::string& api_key() const { return api_key_; }
  const std::string& admin_api_key() const { return admin_api_key_; }

 private:
  ServerProcess();
  void ReadLog(int fd);
  void NoteLine(const std::string& line);
  absl::Status LastWords() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string api_key_, admin_api_key_;
  pid_t pid_ = -1;
  std::thread reader_;
  absl::Mutex mutex_;
  std::deque<std::string> last_lines_ ABSL_GUARDED_BY(mutex_);
  int port_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: nothing is served yet
  bool log_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace somnus::cli
