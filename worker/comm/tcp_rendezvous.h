#pragma once
// How the ranks of a group on several hosts connect, each with every other rank: a rank connects to all lower
// ranks and is connected to by all higher ranks, twice (TcpChannel). tcp_handshake.h says who may.

#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/tcp_communicator.h"

namespace somnus {

// The connections to a rank; none (fd -1) to this rank itself.
struct TcpPeer {
  UniqueFd data, notices;
};

// Connects, and returns the connections by rank. The last rank needs no listener. The other ranks may still
// be connecting to each other at the return. `options` have been checked; `limit` stands for the options
// about time; errors as in MakeTcpCommunicator.
absl::StatusOr<std::vector<TcpPeer>> MeetOverTcp(const GroupOptions& options, TcpListener listener,
                                                 const WaitLimit& limit);

}  // namespace somnus
