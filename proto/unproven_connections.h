#pragma once
// The connections of a listener for members of the cluster whose other side has not shown who it is.
//
// A stranger who connects and says nothing, or who begins a handshake and goes no further, holds a descriptor
// until the handshake's time is over. This class bounds how many such connections may be open at once: a
// further connection closes the oldest. (If the newest were refused, a few strangers would lock all members
// out. A member needs milliseconds for the handshake, and tries again where strangers have pushed it out.)
//
// A connection is proven by its first call: over TLS only calls of members reach the server. A connection
// that is open after the handshake's time is not counted any more, because gRPC has closed all connections
// without a whole handshake by then. Unix sockets are not counted, since a socket's mode keeps strangers out.
//
// Each unproven connection has a second descriptor here, so that closing never meets another file that has
// got the connection's number meanwhile. Thread safe.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class UnprovenConnections {
 public:
  // `most` connections may be unproven at once. `handshake_time`: after which gRPC has closed connections
  // without a whole handshake.
  UnprovenConnections(int most, absl::Duration handshake_time, MonotonicClock now = MonotonicNow);
  ~UnprovenConnections();
  UnprovenConnections(const UnprovenConnections&) = delete;

  // Counts a connection that was accepted just now, and closes the oldest where there are too many. Borrows
  // `fd`. Returns whether a connection was closed.
  bool Add(int fd);
  // A call has come from `peer`, as grpc::ServerContextBase::peer names the other side.
  void Prove(const std::string& peer);
  // Forgets connections that have ended, and connections that are older than the handshake's time.
  void Sweep();
  int64_t num_closed() const { return num_closed_.load(); }

 private:
  struct Connection {
    std::string peer;  // PeerKey
    int fd = -1;       // owned
    MonotonicTime since;
  };

  bool CloseOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t most_;
  const absl::Duration handshake_time_;
  const MonotonicClock now_;
  absl::Mutex mu_;
  std::deque<Connection> connections_ ABSL_GUARDED_BY(mu_);  // the oldest first
  std::atomic<size_t> size_{0};                              // of connections_
  std::atomic<int64_t> num_closed_{0};
};

// Tells `connections` of each call to the server that `builder` makes.
void ProveByCalls(const std::shared_ptr<UnprovenConnections>& connections, grpc::ServerBuilder* builder);

}  // namespace somnus
