#include "coordinator/http_server/connection_waker.h"

#include <boost/asio/post.hpp>

#include "coordinator/http_server/http_connection.h"

namespace somnus {

void ConnectionWaker::Signal(const std::shared_ptr<ConnectionWaker>& self) {
  absl::MutexLock lock(&self->mutex_);
  if (self->connection_ == nullptr) return;
  // The task runs on the I/O thread, as Detach does, so the connection cannot go between the check and the
  // use.
  boost::asio::post(*self->io_, [self] {
    HttpConnection* connection;
    {
      absl::MutexLock inner(&self->mutex_);
      connection = self->connection_;
    }
    if (connection != nullptr) connection->Wake();
  });
}

void ConnectionWaker::Detach() {
  absl::MutexLock lock(&mutex_);
  connection_ = nullptr;
}

}  // namespace somnus
