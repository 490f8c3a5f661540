#pragma once
// The notices that the ranks of a group on several hosts send each other beside data: why the group has
// failed. By the same connections a rank sees that a host cannot be reached any longer.

#include <poll.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/socket_io.h"

namespace somnus {

// A message about the group's failure; numbers are little-endian.
struct TcpNotice {
  uint32_t code = 0;  // absl::StatusCode
  uint32_t size = 0;
  char text[248] = {};
};

// Thread safe.
class TcpNotices {
 public:
  // `connections`: by rank, none for this rank. `wake`: an eventfd. `names`: of the ranks, for messages.
  TcpNotices(std::vector<UniqueFd> connections, UniqueFd wake, std::vector<std::string> names);

  // Makes `status` the failure of the group, unless the group has failed before, tells the other ranks, and
  // wakes threads that poll. Returns the group's failure.
  absl::Status Fail(const absl::Status& status);
  absl::Status failure();  // without reading
  // Reads all notices that have arrived. Returns the group's failure: a rank's notice, or Unavailable for a
  // rank that cannot be reached, of which the other ranks are told. A rank that has closed the connections is
  // no failure here: earlier data of the rank may be under way.
  absl::Status Read();
  // As Read, but Unavailable also for a rank that has closed the connections.
  absl::Status Health();
  // Appends the descriptors by which a poll learns that Read has something new.
  void Watch(std::vector<pollfd>* fds);

 private:
  struct Connection {
    UniqueFd fd;
    bool closed = false;
    TcpNotice notice;  // as far as it has arrived
    size_t have = 0;
  };

  void ReadRank(int rank);
  void Tell(const absl::Status& status);
  void Record(const absl::Status& status);

  const UniqueFd wake_;
  const std::vector<std::string> names_;
  std::mutex mu_;
  std::vector<Connection> connections_;  // guarded by mu_, as the next
  absl::Status failure_;
};

}  // namespace somnus
