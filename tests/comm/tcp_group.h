#pragma once
// A group of ranks over TCP on this host's loopback; each rank is a forked process.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/comm/rank_processes.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/tcp_communicator.h"

namespace somnus {

// Opens every rank's port, before the ranks fork.
class TcpGroup {
 public:
  explicit TcpGroup(int world_size) {
    options_.group_name = UniqueName();
    options_.world_size = world_size;
    options_.secret = "0123456789abcdef";
    options_.collective_timeout = absl::Seconds(60);
    for (int r = 0; r < world_size; ++r) {
      absl::StatusOr<TcpListener> listener = ListenOnTcp("127.0.0.1");
      EXPECT_TRUE(listener.ok()) << listener.status();
      options_.rank_addresses.push_back(absl::StrCat("127.0.0.1:", listener->port));
      listeners_.push_back(*std::move(listener));
    }
  }

  // The options of every rank; to be changed before Join.
  GroupOptions& options() { return options_; }
  int port(int rank) const { return listeners_[rank].port; }

  // To be called in the rank's own process, which also has copies of the other ranks' ports, and closes the
  // copies.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank) {
    TcpListener mine = std::move(listeners_[rank]);
    listeners_.clear();
    options_.rank = rank;
    return MakeTcpCommunicator(options_, std::move(mine));
  }
  // In the process that only watches.
  void CloseAll() { listeners_.clear(); }

 private:
  GroupOptions options_;
  std::vector<TcpListener> listeners_;
};

}  // namespace somnus
