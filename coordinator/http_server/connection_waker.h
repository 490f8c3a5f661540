#pragma once
// Wakes a connection from other threads. Output threads share the waker, and may keep the waker longer than
// the connection lives. Signal may come from any thread and wakes the connection on the I/O thread; after
// Detach, which is for the I/O thread, Signal does nothing. Internal to coordinator/http_server.

// Boost 1.74's awaitable.hpp uses std::exchange without including <utility>.
// clang-format off
#include <utility>
// clang-format on

#include <boost/asio/io_context.hpp>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

class HttpConnection;

class ConnectionWaker {
 public:
  ConnectionWaker(boost::asio::io_context* io, HttpConnection* connection)
      : io_(io), connection_(connection) {}

  static void Signal(const std::shared_ptr<ConnectionWaker>& self);
  void Detach();

 private:
  boost::asio::io_context* const io_;
  absl::Mutex mutex_;
  HttpConnection* connection_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace somnus
